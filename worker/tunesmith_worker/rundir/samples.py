"""Write samples/step-N.jsonl (N with six digits): the completions of a reinforcement step.

Each line is a JSON object for one completion, in the order of the batch. The trainer writes the
sample file uncompressed to save time. The supervisor compresses, stores and removes each sample
file. A run without a supervisor keeps its sample files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_json

from tunesmith_schema import EventKind

from .errors import error_text
from .events import EventLog, finite
from .paths import RunDirectory

Sample = Mapping[str, JsonValue]
"""Fields of a sample: `group`, `row`, `prompt`, `completion`, `reward`, `scores` of each grader,
`advantage`, `prompt_tokens`, `completion_tokens`, `finish_reason` ("stop" or "length")."""

_NAME = re.compile(r"step-([0-9]{6,})\.jsonl")


def write_samples(
    run: RunDirectory, events: EventLog, step: int, samples: Sequence[Sample]
) -> None:
    """Write the graded samples of optimiser step `step` to a file, and log an event.

    All texts are saved in full. NaN and infinity are written as null. An error while writing the
    samples only causes a warning.
    """
    path = run.samples / f"step-{step:06d}.jsonl"
    part = path.with_name(f".{path.name}.part")
    try:
        run.samples.mkdir(exist_ok=True)
        part.write_bytes(b"".join(map(_line, samples)))
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        text = f"step {step}: {len(samples)} samples not written: {error_text(error)}"
        events.message(text, level="warn", data={"step": step})
        return
    reward = _mean_reward(samples)
    text = f"step {step}: {len(samples)} samples"
    events.append(
        EventKind.SAMPLES,
        text if reward is None else f"{text}, mean reward {reward:.4g}",
        {"step": step, "file": run.relative(path), "count": len(samples), "reward": reward},
    )


def remove_samples(run: RunDirectory, *, after: int) -> None:
    """Remove the samples of all steps after step `after`. The resumed run will repeat the steps
    after step `after`."""
    for path in run.samples.glob("step-*.jsonl"):
        name = _NAME.fullmatch(path.name)
        if name is not None and int(name[1]) > after:
            path.unlink(missing_ok=True)


def _line(sample: Sample) -> bytes:
    try:
        return to_json(sample, inf_nan_mode="null") + b"\n"
    except PydanticSerializationError:
        return to_json(_as_unicode(sample), inf_nan_mode="null") + b"\n"


def _as_unicode(value: object) -> object:
    """Replace lone surrogates, which tokenizers can produce, with "?"."""
    if isinstance(value, Mapping):
        return {_as_unicode(key): _as_unicode(inner) for key, inner in value.items()}
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _mean_reward(samples: Sequence[Sample]) -> float | None:
    rewards = [reward for sample in samples if isinstance(reward := sample["reward"], int | float)]
    return finite(sum(rewards) / len(rewards)) if rewards else None
