"""Base models that a job may use, and names of tuned models.

A base model is a Hugging Face id, the full weights of an earlier job, or a folder in an allowed
directory of this host or a worker's host.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode
from tunesmith_schema.model_dirs import why_no_models
from tunesmith_schema.queue import TRAIN_QUEUE
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import AdapterRow, WorkerRow
from tunesmith_server.models.scope import limits_of

from ..workers import READY_SECONDS

_LIVE_WORKERS = (
    select(WorkerRow.worker_id, WorkerRow.models)
    .where(WorkerRow.queue == TRAIN_QUEUE, WorkerRow.last_seen > epoch_now() - READY_SECONDS)
    .order_by(WorkerRow.worker_id)
)
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class BaseChoice:
    name: str
    """Name shown in the job; never a path outside the allowed directories."""
    adapter_id: str | None = None
    """Id of an earlier job's full weights, if these weights are the base model."""
    missing_on_workers: bool = False
    """True if no live training worker has the model's folder."""


def local_folders(settings: Settings) -> dict[str, Path]:
    """Return the model folders on this host; the keys are model names.

    If several directories have a folder with the same name, the first directory is used.
    """
    folders: dict[str, Path] = {}
    for directory in settings.base_model_folders():
        if directory.is_dir():
            for entry in sorted(directory.iterdir()):
                if (entry / "config.json").is_file():
                    folders.setdefault(entry.name, entry)
    return folders


def names(session: Session, settings: Settings) -> list[str]:
    """Return the names of the base models that the session's project may use, on this host and on
    workers."""
    return _allowed(session, settings, on_workers(session))


def _allowed(session: Session, settings: Settings, loadable: Iterable[str]) -> list[str]:
    known = {*local_folders(settings), *loadable}
    return sorted(name for name in known if is_allowed(session, settings, name))


def is_allowed(session: Session, settings: Settings, name: str) -> bool:
    """Return True if TUNESMITH_BASE_MODELS and the session's project allow this base model."""
    limits = limits_of(session)
    lists = (settings.catalogue(), limits.base_models if limits else None)
    return all(allowed is None or name in allowed for allowed in lists)


def on_workers(session: Session) -> dict[str, list[str]]:
    """Return, for each base model, the ids of the live training workers that have it."""
    workers: dict[str, list[str]] = {}
    for worker_id, models in session.execute(_LIVE_WORKERS):
        for name in models if isinstance(models, list) else ():
            workers.setdefault(name, []).append(worker_id)
    return workers


def choose(session: Session, settings: Settings, name: str) -> BaseChoice:
    """Resolve the base model of a new job. Raises BadRequest if the job cannot use the model."""
    if name.startswith("ft:"):
        return _tuned(session, name)
    loadable = on_workers(session)
    known = _allowed(session, settings, loadable)
    if name.startswith(("/", "./", "../", "~")) and name not in known:
        name = _folder_below_allowed(settings, name)
    elif name not in known and not _HUB_ID.fullmatch(name):
        raise _unknown(name, known, settings.base_model_folders())
    if not is_allowed(session, settings, name):
        raise _unknown(name, known, settings.base_model_folders())
    return BaseChoice(name=name, missing_on_workers="/" not in name and name not in loadable)


def _unknown(name: str, known: list[str], searched: list[Path]) -> BadRequest:
    near = difflib.get_close_matches(name, known, n=1)
    return BadRequest(
        ErrorCode.MODEL_NOT_FOUND,
        f"no model {name!r} on this server that the project may use"
        if _HUB_ID.fullmatch(name)
        else f"no model {name!r} on this server; {name!r} is not a Hugging Face id",
        param="model",
        hint=f"did you mean {near[0]!r}?"
        if near
        else f"base models on this server: {', '.join(known)}"
        if known
        else f"this server has no base models: {why_no_models(searched)}; a Hugging Face id has "
        "the form org/name",
    )


def _tuned(session: Session, name: str) -> BaseChoice:
    # The lock protects the weights from being deleted until the job is inserted.
    query = select(AdapterRow).where(AdapterRow.model == name)
    row = session.scalar(query.with_for_update(read=True))
    if row is None:
        raise BadRequest(
            ErrorCode.MODEL_NOT_FOUND, f"no tuned model {name!r} on this server", param="model",
            hint="GET /v1/models lists all models",
        )  # fmt: skip
    if row.kind != "full":
        raise BadRequest(
            ErrorCode.MODEL_NOT_USABLE,
            f"{name!r} is a LoRA adapter, not a base model",
            param="model",
            hint=f"use its base model, {row.base_model!r}",
        )
    return BaseChoice(name=name, adapter_id=row.id)


def _folder_below_allowed(settings: Settings, name: str) -> str:
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # an invalid path is refused below
        path = Path(name).expanduser().resolve()
        for directory in settings.base_model_folders():
            if directory in path.parents and (path / "config.json").is_file():
                return str(path.relative_to(directory))
    raise BadRequest(
        ErrorCode.MODEL_NOT_FOUND,
        f"model {name!r} is not a model folder in an allowed directory",
        param="model",
        hint="ask the operator to add the directory to TUNESMITH_MODEL_DIRS",
    )


def tuned_name(project: str, model: str, suffix: str | None, job_id: str) -> str:
    """Return the name of a tuned model, `ft:BASE:PROJECT:SUFFIX:ID`; BASE has no slashes or host
    paths."""
    base = model.split(":")[1] if model.startswith("ft:") else model.rstrip("/").rsplit("/", 1)[-1]
    base = re.sub(r"[^A-Za-z0-9._-]", "-", base)[:100]
    suffix = re.sub(r"[^A-Za-z0-9._-]+", "-", suffix or "")
    return f"ft:{base}:{project}:{suffix}:{job_id.removeprefix('ftjob-')[:10]}"


CHECKPOINT_MARK = ":ckpt-step-"
"""Separator in a checkpoint's name; the tuned model's name is the text before it."""


def checkpoint_name(tuned: str, step: int) -> str:
    """Return the model name of a checkpoint of the tuned model `tuned`."""
    return f"{tuned}{CHECKPOINT_MARK}{step}"
