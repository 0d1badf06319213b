"""Download a claimed job's inputs: data files, base model and resume points.

Downloads run in a separate thread, while the main thread reports to the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tunesmith_schema import Claim, RunSpec, StoredFile
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.supervisor import base_models
from tunesmith_worker.supervisor.server_api import ServerApi
from tunesmith_worker.supervisor.settings import WorkerSettings

from .fetch_resume_points import Retry, fetch_resume_points

DATA_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv"})
"""File name suffixes that downloaded data files keep.

For other files, the format is detected from the content.
"""


def fetch_inputs(
    settings: WorkerSettings,
    api: ServerApi,
    claim: Claim,
    root: Path,
    retry: Retry,
    events: EventLog,
) -> RunSpec:
    """Fetch a job's inputs into the run directory `root` and the cache; return the spec."""
    names: dict[str, str] = {}
    for role, file in (("train", claim.training_file), ("valid", claim.validation_file)):
        if file is None:
            continue
        names[role] = f"data/{data_name(role, file.filename)}"
        target, file_id, sha256 = root / names[role], file.file_id, file.sha256
        retry(lambda f=file_id, s=sha256, t=target: api.fetch_file(f, s, t))  # type: ignore[misc]  # defaults bind the loop's values
    fetch_resume_points(api, claim, root, retry, events)
    if claim.base_files is None:
        model_path = base_models.resolve(settings, claim.model)
        base_models.check_base_model(
            claim.model, Path(model_path), from_scratch=claim.recipe.from_scratch
        )
    else:
        fetch = partial(api.fetch_base_file, claim.job_id, claim.fence)
        model_path = str(cached_model(settings, claim.model, claim.base_files, fetch, retry))
    return RunSpec(
        job_id=claim.job_id,
        attempt=claim.attempt,
        model=claim.model,
        model_path=model_path,
        training_file=names["train"],
        validation_file=names.get("valid"),
        training_file_name=claim.training_file.filename,
        validation_file_name=claim.validation_file.filename if claim.validation_file else None,
        recipe=claim.recipe,
        method=claim.method,
        grader=claim.grader,
        hyperparameters=claim.hyperparameters,
        seed=claim.seed,
        forked=claim.forked,
    )


def data_name(role: str, filename: str) -> str:
    """Return the name of a downloaded data file, with the suffix of the user's `filename`."""
    suffix = Path(filename).suffix.lower()
    return f"{role}{suffix if suffix in DATA_SUFFIXES else ''}"


def cached_model(
    settings: WorkerSettings,
    name: str,
    files: list[StoredFile],
    fetch: Callable[[StoredFile, Path], None],
    retry: Retry,
) -> Path:
    """Return the cached folder of a model that this service tuned. Download the model if it is not
    cached.

    `fetch` downloads one file, and `retry` repeats a failed download.

    The folder's name contains a hash of its content, and the folder appears only when complete. If
    several workers download the same model at the same time, the first copy stays.
    """
    content = "".join(f"{file.name}:{file.sha256};" for file in files)
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    models = settings.data_dir / "models"
    folder = models / f"{name.replace(':', '_')}-{key}"
    if not folder.is_dir():
        models.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=models))
        try:
            for file in files:
                retry(partial(fetch, file, part / file.name))
            with contextlib.suppress(OSError):  # another worker finished first
                part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    os.utime(folder)  # the cache removes folders that have not been used for long
    return folder
