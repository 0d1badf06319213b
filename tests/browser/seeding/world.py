"""A small team's service: files, jobs in every state, curves, samples, tuned models, workers."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from sqlalchemy.orm import Session

from tunesmith_schema import (
    FileStats,
    JobCreate,
    JobState,
    LengthBin,
    RepeatedRow,
    RowLengths,
)
from tunesmith_schema.report_example import REINFORCEMENT_EXAMPLE, REPORT_EXAMPLE
from tunesmith_server.core.database import Database, new_id
from tunesmith_server.core.principal import ProjectLimits
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import (
    DEFAULT_PROJECT,
    AdapterRow,
    CheckpointRow,
    FileRow,
    JobRow,
    ReportRow,
    WorkerRow,
    scope,
)
from tunesmith_server.services import blobs, janitor_runs
from tunesmith_server.services.data import file_stats
from tunesmith_server.services.results import job_health
from tunesmith_server.services.training import events, job_create
from tunesmith_server.services.training.job_create import Requester

from ...server.callers import VERDICT
from . import curves, history
from .hostile import of_length
from .links import link
from .quiet import Quiet

MODEL = "tiny-llama"
"""Base model; the service needs a folder of this name in its model directories."""
ROW = (
    b'{"messages": [{"role": "user", "content": "3 plus 3?"}, '
    b'{"role": "assistant", "content": "6"}]}\n'
)
_PROMPT = b'{"messages": [{"role": "user", "content": "3 plus 3?"}], "answer": "6"}\n'
_GRADER = {
    "type": "string_check", "name": "right", "operation": "like",
    "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
}  # fmt: skip
_VERIFICATION = to_json(VERDICT | {"step": 500, "made_with": {"torch": "2.9.1", "peft": "0.19.1"}})


@dataclass(kw_only=True)
class World:
    """Ids of what was stored."""

    jobs: dict[str, str] = field(default_factory=dict)
    """Job id by what the job is, such as `running` or `reinforcement`."""
    files: dict[str, str] = field(default_factory=dict)
    """File id by what the file is."""
    models: list[str] = field(default_factory=list)
    """Names of the tuned models."""
    results: dict[str, str] = field(default_factory=dict)
    """Name of the tuned model by what its job is."""
    links: dict[str, str] = field(default_factory=dict)
    """Path of a link that shows a job without a sign-in, by what the job is."""


def fill(settings: Settings, database: Database, storage: Storage, owner: str) -> World:
    """Store a world whose jobs belong to the API key with the id `owner`. The installation must
    already exist, so the app must have started once."""
    world, now = World(), time.time()
    own = ProjectLimits(project_id=DEFAULT_PROJECT)
    with scope.limit(database.write(), own) as session, session.begin():
        session.add(_worker("gpu-1", now))
        session.add(_worker("gpu-3", now))
        session.add(_worker("gpu-2", now, not_ready="the device has 3 GB free of 141 GB"))
        session.flush()
        maker = _Maker(session, settings, storage, owner, world, now)
        _files(maker)
        _supervised(maker)
        _ended_and_waiting(maker)
        _reinforcement(maker)
        _hostile(maker)
        for what, job_id in world.jobs.items():
            world.links[what] = link(session, job_id, owner, now)
        _janitor(session, now)
    return world


def _janitor(session: Session, now: float) -> None:
    """Store a failed round and a sweep that deleted content."""
    sweep = janitor_runs.Run("sweep", started_at=now - 1500, objects=3, bytes=98_304)
    failed = "could not delete expired files: OperationalError"
    for run in (sweep, janitor_runs.Run("round", started_at=now - 65, error=failed)):
        janitor_runs.store(session, run, seconds=0.05, next_sweep_at=now + 2100)


def _worker(name: str, now: float, not_ready: str | None = None) -> WorkerRow:
    return WorkerRow(
        worker_id=name, queue="train", host=f"{name}.example", device="NVIDIA H200",
        version="0.1.0", models=[MODEL], not_ready=not_ready, last_seen=now, first_seen=now - 9e5,
        labels={"gpu": "h200"}, device_bytes=150_754_820_096,
    )  # fmt: skip


class _Maker:
    """Stores files and jobs of a world."""

    def __init__(
        self, session: Session, settings: Settings, storage: Storage, owner: str, world: World,
        now: float,
    ) -> None:  # fmt: skip
        self.session, self.storage, self.world, self.now = session, storage, world, now
        self._settings, self._owner = settings, owner

    def put(self, content: bytes) -> str:
        """Store content and return its sha256."""
        digest = hashlib.sha256(content).hexdigest()
        self.storage.put(io.BytesIO(content), digest)
        blobs.use(self.session, {digest: len(content)})
        return digest

    def stored(self, name: str, content: bytes) -> dict[str, Any]:
        """Store content and return it as a file of a model. Any: JSON."""
        return {"name": name, "bytes": len(content), "sha256": self.put(content)}

    def file(self, what: str, name: str, content: bytes, validation: dict[str, Any] | None) -> None:
        """Store a file; without a validation, it is not yet validated. Any: JSON."""
        ok = None if validation is None else validation["ok"]
        row = FileRow(
            id=new_id("file"), created_at=self.now - 9e4 + len(self.world.files), filename=name,
            purpose="fine-tune", bytes=len(content), sha256=self.put(content),
            status={None: "uploaded", True: "processed", False: "error"}[ok],
            status_details="row 7: not JSON" if ok is False else None, validation=validation,
        )  # fmt: skip
        self.session.add(row)
        self.session.flush()
        self.world.files[what] = row.id
        if validation is not None:
            self._figures(row, content)

    def _figures(self, file: FileRow, content: bytes) -> None:
        """Store what a light worker finds: the rows are equal, or there are a few of them."""
        lines = content.splitlines()
        hashes = [hash(line) % 2**63 + 1 for line in lines]
        lengths = [len(line) - 40 for line in lines]
        bins = [(20 * step, (step * 7) % 11 + 1) for step in range(1, 22)]
        stats = FileStats(
            rows=len(lines), duplicates=len(lines) - len(set(lines)),
            repeated=[RepeatedRow(row=1, count=len(lines), next=2)] if len(lines) > 1 else [],
            lengths=RowLengths(
                total=sum(lengths), min=min(lengths), median=38, p95=60, max=420,
                histogram=[LengthBin(upto=upto, rows=rows) for upto, rows in bins],
            ),
        )  # fmt: skip
        packed = base64.b64encode(array("Q", hashes).tobytes()).decode()
        file_stats.store(self.session, file.id, stats, packed)

    def job(self, what: str, age: float, state: JobState, **body: Any) -> JobRow:
        """Store a job that was created `age` seconds ago. Any: JSON."""
        training = "prompts" if "method" in body else "train"
        body = {"model": MODEL, "training_file": self.world.files[training], "seed": 7} | body
        requester = Requester(owner=self._owner)
        job = job_create.insert(
            self.session, self._settings, Quiet(), JobCreate.model_validate(body), requester, ""
        )
        job.created_at = job.queued_at = self.now - age
        job.state = state
        if state not in (JobState.QUEUED, JobState.VALIDATING_FILES):
            job.attempt, job.started_at = 1, self.now - age + 4
            history.start(self.session, job, job.started_at)
        if state in (JobState.RUNNING, JobState.PAUSING):
            job.lease_owner = "gpu-1" if training == "train" else "gpu-3"
            job.lease_until, job.fence = self.now + 1e6, 1
            job.claimed_at, job.claimed_step, job.phase = job.started_at, 0, "train"
            job.measured_at, job.measured_step = self.now - age + 24, 0
        self.world.jobs[what] = job.id
        return job

    def curve(self, job: JobRow, steps: int, total: int) -> None:
        """Store the metrics of `steps` steps, up to now or to the end of the job."""
        make = curves.reinforcement if job.method_name == "reinforcement" else curves.supervised
        assert job.started_at is not None, "the job has started"
        job.total_steps = total
        last = job.finished_at or self.now
        seconds = (last - job.started_at - 20) / steps
        history.train(self.session, job, make(steps, total, job.seed), job.started_at + 20, seconds)
        job.trained_tokens = 2620 * steps
        self.session.flush()
        job_health.derive(self.session, job)
        example = REINFORCEMENT_EXAMPLE if make is curves.reinforcement else REPORT_EXAMPLE
        content = dict(example) | {"job_id": job.id, "steps": steps, "total_steps": total}
        content["live"] = job.finished_at is None
        self.session.add(ReportRow(job_id=job.id, attempt=1, updated_at=last, content=content))

    def succeed(self, job: JobRow, *steps: int) -> None:
        """End a job with a checkpoint and a tuned model at each of `steps`."""
        finished = job.finished_at or self.now
        weights = self.stored("adapter_model.safetensors", f"weights of {job.id}".encode())
        for step in steps:
            last = step == steps[-1]
            name = f"ft:{MODEL}:default:{job.suffix or 'model'}:{job.id[-8:]}"
            name += "" if last else f":ckpt-step-{step}"
            files = [weights]
            if last:
                config = self.stored("adapter_config.json", b'{"r": 16}')
                files = [config, weights, self.stored("verification.json", _VERIFICATION)]
            row = AdapterRow(
                id=new_id("adp"), created_at=finished, job_id=job.id, model=name,
                base_model=MODEL, kind="lora", step=step, files=files,
                bytes=sum(file["bytes"] for file in files),
            )  # fmt: skip
            self.session.add(row)
            self.session.flush()
            self.session.add(
                CheckpointRow(
                    id=new_id("ftckpt"), created_at=finished, job_id=job.id, step=step, model=name,
                    metrics={"step": step, "train_loss": 0.91}, adapter_id=row.id,
                )
            )  # fmt: skip
            self.world.models.append(name)
            if last:
                job.fine_tuned_model, job.adapter_id = name, row.id
                whats = [what for what, job_id in self.world.jobs.items() if job_id == job.id]
                self.world.results[whats[0]] = name
        events.add(self.session, job, f"succeeded: {job.fine_tuned_model}", created_at=finished)


def _files(make: _Maker) -> None:
    good = {"ok": True, "format": "messages", "prompt_format": None, "rows": 240}
    make.file("train", "support-train.jsonl", ROW * 240, good | {"usable_for": ["supervised"]})
    make.file("valid", "support-valid.jsonl", ROW * 24, good | {"usable_for": ["supervised"]})
    prompts = {"ok": True, "prompt_format": "messages", "rows": 64, "usable_for": ["reinforcement"]}
    make.file("prompts", "sums.jsonl", _PROMPT * 64, prompts)
    problems = [{"row": 7, "message": "not JSON: expected a comma"}]
    bad = {"ok": False, "rows": 30, "problems": problems, "num_problems": 1}
    make.file("bad", "export.jsonl", ROW * 6 + b'{"messages": []' + b"\n" + ROW * 23, bad)
    make.file("new", "new.jsonl", ROW * 3, None)


def _supervised(make: _Maker) -> None:
    valid = {"validation_file": make.world.files["valid"]}
    job = make.job("succeeded", 90_000, JobState.SUCCEEDED, suffix="support", **valid)
    job.finished_at = job.created_at + 1500
    make.curve(job, 500, 500)
    make.succeed(job, 250, 500)
    labels = {"team": "support", "ticket": "SUP-812"}
    make.curve(
        make.job("running", 700, JobState.RUNNING, suffix="support-v2", metadata=labels, **valid),
        180, 400,
    )  # fmt: skip


def _ended_and_waiting(make: _Maker) -> None:
    failed = make.job("failed", 40_000, JobState.FAILED, suffix="too-large")
    failed.finished_at = failed.created_at + 300
    make.curve(failed, 12, 300)
    failed.error = {
        "category": "out_of_memory", "code": "out_of_memory",
        "message": "the device has 141 GB; step 13 needed 152 GB",
        "hint": "set recipe.gradient_checkpointing to true", "param": "recipe",
    }  # fmt: skip
    cancelled = make.job("cancelled", 30_000, JobState.CANCELLED)
    cancelled.finished_at = cancelled.created_at + 90
    paused = make.job("paused", 20_000, JobState.PAUSED, suffix="night-run")
    make.curve(paused, 60, 600)
    make.job("queued", 120, JobState.QUEUED, suffix="next", scheduling={"priority": 5})
    make.job("validating", 5, JobState.VALIDATING_FILES, training_file=make.world.files["new"])


def _reinforcement(make: _Maker) -> None:
    method = {"type": "reinforcement", "reinforcement": {"grader": _GRADER}}
    running = make.job("reinforcement", 3600, JobState.RUNNING, method=method, suffix="sums")
    make.curve(running, 120, 200)
    history.samples(make.session, make.storage, running, range(10, 121, 10), at=make.now)
    done = make.job("reinforced", 60_000, JobState.SUCCEEDED, method=method, suffix="sums-0")
    done.finished_at = done.created_at + 7000
    make.curve(done, 200, 200)
    history.samples(make.session, make.storage, done, range(20, 201, 20), at=done.finished_at)
    make.succeed(done, 200)


def _hostile(make: _Maker) -> None:
    """Hostile texts as file names, suffixes, metadata, messages, prompts and completions."""
    labels = {text[:64]: text for text in of_length(512)[:16]}
    good = {"ok": True, "format": "messages", "rows": 1, "usable_for": ["supervised"]}
    for number, text in enumerate(of_length(255)):
        make.file(f"hostile-{number}", text.replace("\0", ""), ROW, good)
    said = ({"messages": [{"role": text[:40], "content": text}]} for text in of_length(20_000)[::6])
    rows = b"".join(json.dumps(row).encode() + b"\n" for row in said)
    make.file("hostile-rows", of_length(255)[0], rows, good)
    job = make.job("hostile", 200_000, JobState.FAILED, suffix=of_length(64)[0], metadata=labels)
    job.finished_at = job.created_at + 60
    job.name, job.notes, job.pinned = of_length(200)[0], "\n".join(of_length(160)), True
    lines = [{"message": text, "level": "warn", "data": {"x": text}} for text in of_length(200_000)]
    history.tell(make.session, job, job.finished_at, lines)
    error = {"category": "user", "code": "recipe_invalid", "message": of_length(4000)[3]}
    job.error = error | {"hint": of_length(4000)[0], "param": of_length(255)[1]}
    method = {"type": "reinforcement", "reinforcement": {"grader": _GRADER}}
    other = make.job("hostile samples", 210_000, JobState.SUCCEEDED, method=method)
    other.finished_at = other.created_at + 100
    make.curve(other, 20, 20)
    texts, at = of_length(200_000), other.finished_at
    history.samples(make.session, make.storage, other, [20], at=at, groups=15, texts=texts)
