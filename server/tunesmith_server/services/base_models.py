"""Which base models a job may name, and the names of tuned ones.

A base model is a folder below an allowed directory (of this host or of a worker's), a hub id, or
the full weights that an earlier job produced.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Model
from tunesmith_schema.model_dirs import why_no_models
from tunesmith_schema.queue import TRAIN_QUEUE
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import AdapterRow, WorkerRow

from .workers import READY_SECONDS

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class BaseChoice:
    name: str
    """As the job will carry it: never a host path outside the allowed directories."""
    adapter_id: str | None = None
    """Full weights of an earlier job."""
    on_no_worker: bool = False
    """Whether it is a folder that no train worker that is up has."""


def folders(settings: Settings) -> dict[str, Path]:
    """Model folders on this host by name; the first directory wins."""
    found: dict[str, Path] = {}
    for directory in settings.base_model_folders():
        if directory.is_dir():
            for entry in sorted(directory.iterdir()):
                if (entry / "config.json").is_file():
                    found.setdefault(entry.name, entry)
    return found


def names(session: Session, settings: Settings) -> list[str]:
    """Names of base models here and on the workers."""
    return sorted(set(folders(settings)) | on_workers(session))


def on_workers(session: Session) -> set[str]:
    """Names of base models on the hosts of live train workers."""
    live = select(WorkerRow.models).where(
        WorkerRow.queue == TRAIN_QUEUE, WorkerRow.last_seen > epoch_now() - READY_SECONDS
    )
    return {name for models in session.scalars(live) for name in models}


def choose(session: Session, settings: Settings, name: str) -> BaseChoice:
    """The base model a job asks for. Raises BadRequest when it cannot be one."""
    if name.startswith("ft:"):
        return _tuned(session, name)
    ready = on_workers(session)
    known = sorted(set(folders(settings)) | ready)
    if name.startswith(("/", "./", "../", "~")) and name not in known:
        name = _folder_below_allowed(settings, name)
    elif name not in known and not _HUB_ID.fullmatch(name):
        raise _unknown(name, known, settings.base_model_folders())
    return BaseChoice(name=name, on_no_worker="/" not in name and name not in ready)


def _unknown(name: str, known: list[str], looked_at: list[Path]) -> BadRequest:
    near = difflib.get_close_matches(name, known, n=1)
    return BadRequest(
        ErrorCode.MODEL_NOT_FOUND,
        f"model {name!r} is neither on this host nor a hub id",
        param="model",
        hint=f"did you mean {near[0]!r}?"
        if near
        else f"base models here: {', '.join(known)}"
        if known
        else f"no base models here: {why_no_models(looked_at)}; a hub id looks like org/name",
    )


def why_it_waits(base: BaseChoice) -> str | None:
    """A warning when no worker that is up could serve a job on `base`."""
    return no_worker_has(base.name) if base.on_no_worker else None


def no_worker_has(name: str) -> str:
    return (
        f"no train worker that is up has the base model {name!r}, so the job waits: start one "
        "whose TUNESMITH_MODEL_DIRS has that folder"
    )


def _tuned(session: Session, name: str) -> BaseChoice:
    row = session.scalar(select(AdapterRow).where(AdapterRow.model == name))
    if row is None:
        raise BadRequest(
            ErrorCode.MODEL_NOT_FOUND, f"no tuned model {name!r} here", param="model",
            hint="GET /v1/models lists them",
        )  # fmt: skip
    if row.kind != "full":
        raise BadRequest(
            ErrorCode.MODEL_NOT_USABLE,
            f"{name!r} is a LoRA adapter, not a base model",
            param="model",
            hint=f"train on its base model, {row.base_model!r}",
        )
    return BaseChoice(name=name, adapter_id=row.id)


def _folder_below_allowed(settings: Settings, name: str) -> str:
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # what no path can be is none
        path = Path(name).expanduser().resolve()
        for directory in settings.base_model_folders():
            if directory in path.parents and (path / "config.json").is_file():
                return str(path.relative_to(directory))
    raise BadRequest(
        ErrorCode.MODEL_NOT_FOUND,
        f"model {name!r} is not a model folder below an allowed directory",
        param="model",
        hint="the operator allows directories with TUNESMITH_MODEL_DIRS",
    )


def tuned_name(settings: Settings, model: str, suffix: str | None, job_id: str) -> str:
    """`ft:BASE:PROJECT:SUFFIX:ID`, BASE without slashes or host paths."""
    base = model.split(":")[1] if model.startswith("ft:") else model.rstrip("/").rsplit("/", 1)[-1]
    base = re.sub(r"[^A-Za-z0-9._-]", "-", base)[:100]
    suffix = re.sub(r"[^A-Za-z0-9._-]+", "-", suffix or "")
    return f"ft:{base}:{settings.project}:{suffix}:{job_id.removeprefix('ftjob-')[:10]}"


def list_models(session: Session, settings: Settings) -> list[Model]:
    local = folders(settings)
    base = [
        Model(
            id=name,
            created=int(local[name].stat().st_mtime) if name in local else 0,
            owned_by="base",
        )
        for name in names(session, settings)
    ]
    tuned = session.scalars(select(AdapterRow).order_by(AdapterRow.created_at.desc()))
    return base + [_tuned_to_wire(row) for row in tuned]


def retrieve(session: Session, settings: Settings, name: str) -> Model:
    for model in list_models(session, settings):
        if model.id == name:
            return model
    raise NotFound(ErrorCode.MODEL_NOT_FOUND, f"no model {name!r}", hint="GET /v1/models")


def _tuned_to_wire(row: AdapterRow) -> Model:
    return Model(
        id=row.model,
        created=int(row.created_at),
        owned_by="tunesmith",
        adapter_id=row.id,
        base_model=row.base_model,
    )
