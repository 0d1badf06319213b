"""Events, metrics and samples of a job, as its worker would have reported them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from tunesmith_schema import EventKind
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import EventRow, JobRow, MetricRow, SamplesRow
from tunesmith_server.services import blobs
from tunesmith_server.services.results import curve_chunks

from .curves import Values

_AT_ONCE = 5000
_SHOWN = ("train_loss", "valid_loss", "reward", "valid_reward")
_CHECKS = ("tokenizer", "chat_template", "labels", "longest_batch", "gradients", "weights")


def tell(session: Session, job: JobRow, at: float, events: Sequence[dict[str, Any]]) -> None:
    """Append events at the Unix time `at`. Each has a `message`, and optionally `kind`, `level` and
    `data`. Any: JSON."""
    rows = []
    for event in events:
        job.last_seq += 1
        row = {"kind": EventKind.MESSAGE, "level": "info", "data": {}, **event}
        row |= {"project_id": job.project_id, "job_id": job.id, "seq": job.last_seq}
        rows.append(row | {"created_at": at, "attempt": job.attempt})
    session.execute(insert(EventRow), rows)


def start(session: Session, job: JobRow, at: float) -> None:
    """Append what a trainer reports before its first step."""
    phases = {"claim": 0.4, "download": 0.4, "import": 6.1, "load": 3.4, "data": 2.6, "plan": 0.1}
    choices = [
        ("per_device_train_batch_size", 8, "the largest that fits the device"),
        ("gradient_checkpointing", False, "41 of 141 GB are enough without it"),
    ]
    tell(session, job, at, [
        {"message": "running on worker gpu-1", "kind": EventKind.STATE,
         "data": {"state": "running"}},
        *({"message": f"{name} took {seconds:.1f} s", "kind": EventKind.PHASE,
           "data": {"phase": name, "seconds": seconds}} for name, seconds in phases.items()),
        *({"message": f"{name} = {value}: {reason}", "kind": EventKind.CHOICE,
           "data": {"name": name, "value": value, "reason": reason}}
          for name, value, reason in choices),
        *({"message": f"self-check: {name} passed", "kind": EventKind.METRICS,
           "data": {"self_check": name, "state": "passed"}} for name in _CHECKS),
    ])  # fmt: skip


def train(
    session: Session, job: JobRow, curve: Iterable[tuple[int, Values]], at: float, seconds: float
) -> None:
    """Store the metrics of each step and their events. The first step ends at `at`, and each takes
    `seconds`."""
    shown: dict[str, Any] = {}
    steps = iter(curve)
    while part := list(islice(steps, _AT_ONCE)):
        metrics, events = [], []
        for step, values in part:
            metrics += [
                {"job_id": job.id, "step": step, "name": name, "value": value}
                for name, value in values.items()
            ]
            shown |= {name: values[name] for name in _SHOWN if name in values}
            main = "reward" if "reward" in values else "train_loss"
            job.last_seq += 1
            events.append(
                {
                    "project_id": job.project_id, "job_id": job.id, "seq": job.last_seq,
                    "created_at": at + step * seconds, "attempt": job.attempt, "level": "info",
                    "kind": EventKind.METRICS, "message": f"step {step}: {main} {values[main]:.4g}",
                    "data": {"step": step, "total_steps": job.total_steps, **values},
                }
            )  # fmt: skip
        session.execute(insert(MetricRow), metrics)
        session.execute(insert(EventRow), events)
        job.step = part[-1][0]
        curve_chunks.seal(session, job, job.step, most=_AT_ONCE)
    job.last_metrics = shown


def samples(
    session: Session,
    storage: Storage,
    job: JobRow,
    steps: Iterable[int],
    *,
    at: float,
    groups: int = 4,
    texts: Sequence[str] = (),
) -> None:
    """Store four completions of `groups` prompts for each step. `texts` replace the first
    completions."""
    rng = random.Random(job.seed)
    for step in steps:
        lines = [_sample(rng, step, place, texts) for place in range(4 * groups)]
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=1) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        content = buffer.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        storage.put(io.BytesIO(content), digest)
        blobs.use(session, {digest: len(content)})
        row = SamplesRow(
            job_id=job.id, step=step, created_at=at, count=len(lines), bytes=len(content),
            sha256=digest,
        )  # fmt: skip
        session.add(row)
        reward = sum(line["reward"] for line in lines) / len(lines)
        data = {"step": step, "count": len(lines), "reward": reward}
        message = f"step {step}: {len(lines)} samples, mean reward {reward:.4g}"
        tell(session, job, at, [{"message": message, "kind": EventKind.SAMPLES, "data": data}])


def _sample(rng: random.Random, step: int, place: int, texts: Sequence[str]) -> dict[str, Any]:
    group, first = place // 4, 3 + place // 4
    right = rng.random() < 0.4 + min(step, 200) / 400
    number = 2 * first if right else 2 * first + rng.randint(1, 5)
    answer = f"{first} plus {first} makes {number}.\nThe answer is {number}."
    return {
        "group": group,
        "row": group + 1,
        "prompt": f"<|user|>\nHow much is {first} plus {first}?<|end|>\n<|assistant|>\n",
        "completion": texts[place] if place < len(texts) else answer,
        "reward": float(right),
        "scores": {"right": float(right), "short": round(rng.random(), 3)},
        "advantage": 0.7 if right else -0.7,
        "prompt_tokens": 14,
        "completion_tokens": 18 + rng.randint(0, 9),
        "finish_reason": "length" if rng.random() < 0.1 else "stop",
    }
