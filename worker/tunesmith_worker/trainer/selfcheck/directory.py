"""Whether checkpoints can be written, and whether the disk has room for what the run will leave."""

from __future__ import annotations

import contextlib
import os
import shutil

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.memory.describe import size
from tunesmith_worker.engine.model.adapter_size import predict_bytes
from tunesmith_worker.engine.model.adapters import adapter_dtype

from .findings import Finding
from .subject import Outcome, Tuned, judged

PROBE_BYTES = 4096
RESUME_POINTS = 2
"""Full states that may lie there at once: the last, and the one that is being written."""
MARGIN = 1.1
"""Of the predicted bytes: file systems take their share."""
NAME = "checkpoint_directory"


def check_directory(subject: Tuned) -> Outcome:
    """`checkpoint_directory`: a file is written there, flushed to the disk and removed."""
    folder = subject.folder / "checkpoints"
    probe = folder / ".self-check.part"
    try:
        folder.mkdir(exist_ok=True)
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):  # it may not even have been made
            probe.unlink()
        return judged(NAME, [_not_writable(error)], "")
    needed, free = int(MARGIN * predicted_bytes(subject)), shutil.disk_usage(folder).free
    findings = []
    if free < needed:
        findings.append(
            Finding(
                NAME,
                f"{size(free)} are free, and the result with {RESUME_POINTS} resume points takes "
                f"{size(needed)} ({MARGIN - 1:.0%} to spare included).",
                "Free space in the worker's data directory, then start the job again.",
                category=ErrorCategory.INFRASTRUCTURE,
            )
        )
    return judged(NAME, findings, f"{size(needed)} needed, {size(free)} free")


def predicted_bytes(subject: Tuned) -> int:
    """Of what is saved at the end, and of the states that the run could go on from: the weights
    that train, and what the optimiser keeps for them."""
    model = subject.model
    weights: int = sum(p.numel() * p.itemsize for p in model.parameters() if p.requires_grad)
    state = weights + subject.optimizer_bytes
    if subject.full:
        return weights + RESUME_POINTS * state
    return predict_bytes(model, adapter_dtype(subject.recipe)) + RESUME_POINTS * state


def _not_writable(error: OSError) -> Finding:
    return Finding(
        NAME,
        f"a file of {PROBE_BYTES} bytes cannot be written to the run's checkpoints: "
        f"{error.strerror or error}.",
        "Check the rights and the space of the worker's data directory.",
        category=ErrorCategory.INFRASTRUCTURE,
    )
