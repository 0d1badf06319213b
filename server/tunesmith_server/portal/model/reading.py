"""Contents of the page of a model, read with the service functions that the API's routes use."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json
from sqlalchemy.orm import Session

from tunesmith_schema import (
    Adapter,
    Checkpoint,
    CheckpointPermission,
    FileObject,
    Job,
    JobLineage,
    Model,
    ModelUse,
    SelfCheck,
)
from tunesmith_server.core.errors import NotFound
from tunesmith_server.identity import sharing
from tunesmith_server.models import JobRow
from tunesmith_server.portal.job import charts
from tunesmith_server.portal.visit import Visit
from tunesmith_server.services.catalogue import adapters, lineage, model_list, model_uses
from tunesmith_server.services.catalogue.model_list import ModelFilters
from tunesmith_server.services.data import files
from tunesmith_server.services.results import curves, self_checks
from tunesmith_server.services.training import events, jobs

_CHECKPOINTS = 100
_USES = 20
_TUNED = 20
"""Maximum number of tuned models that the page of a base model lists."""
_PERMISSIONS = 100


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Job that trained a model, with the data that the page shows about the job."""

    job: Job
    lineage: JobLineage
    files: list[FileObject]
    """Training file and validation file, if they still exist."""
    check: SelfCheck | None
    checkpoints: list[Checkpoint]
    """Checkpoints of the job, newest first."""
    curve: charts.Drawn
    marks: list[tuple[int, float]]
    """Steps of the checkpoints, each with its horizontal position in the drawing of the curve."""


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Contents of the page of a model."""

    model: Model
    base: Model | None
    """Base model of a tuned model, if the project may use it."""
    adapter: Adapter | None
    """Files of a tuned model; None for a base model."""
    origin: Origin | None
    """Job that trained the model; None for a base model, or for a model of another project."""
    uses: list[ModelUse]
    has_more_uses: bool
    tuned: list[Model] = field(default_factory=list)
    """Newest models that were tuned from this model."""
    permissions: list[CheckpointPermission] = field(default_factory=list)
    """Projects that may use the model."""


def read(visit: Visit, name: str, *, may_share: bool) -> ModelParts:
    """Read the contents of the page. Raises NotFound for an unknown model."""
    session = visit.session
    model = _model(visit, name)
    adapter = adapters.to_wire(adapters.retrieve(session, model.adapter_id)) if (
        model.adapter_id
    ) else None  # fmt: skip
    base = None
    with suppress(NotFound):
        base = _model(visit, model.base_model) if model.base_model else None
    origin = _origin(session, model)
    uses = model_uses.list_uses(session, name, after=None, limit=_USES, order="desc")
    permissions = []
    if origin and may_share:
        shared = sharing.list_permissions(
            session, name, after=None, limit=_PERMISSIONS, order="desc", project_id=None
        )
        permissions = shared.data
    return ModelParts(
        model=model,
        base=base,
        adapter=adapter,
        origin=origin,
        uses=[ModelUse(**item) for item in _data(uses)],
        has_more_uses=uses.has_more,
        tuned=_tuned(visit, name) if model.kind != "lora" else [],
        permissions=permissions,
    )


def _model(visit: Visit, name: str) -> Model:
    state = visit.state
    return model_list.retrieve(visit.session, state.settings, name, state.inference.serving)


def _tuned(visit: Visit, name: str) -> list[Model]:
    state = visit.state
    page = model_list.list_models(
        visit.session, state.settings, after=None, limit=_TUNED, filters=ModelFilters(base=name),
        serving=state.inference.serving,
    )  # fmt: skip
    return [Model(**item) for item in _data(page)]


def _origin(session: Session, model: Model) -> Origin | None:
    if model.job_id is None:
        return None
    try:
        row = jobs.retrieve(session, model.job_id)
    except NotFound:
        return None
    page = events.list_checkpoints(session, row, after=None, limit=_CHECKPOINTS, order="desc")
    checkpoints = [Checkpoint(**item) for item in _data(page)]
    curve, marks = _curve(session, row, [point.step_number for point in checkpoints])
    return Origin(
        job=jobs.to_wire(row),
        lineage=lineage.retrieve(session, row),
        files=_files(session, row),
        check=_check(session, row),
        checkpoints=checkpoints,
        curve=curve,
        marks=marks,
    )


def _curve(
    session: Session, row: JobRow, steps: list[int]
) -> tuple[charts.Drawn, list[tuple[int, float]]]:
    is_reinforcement = row.method_name == "reinforcement"
    chart = charts.charts_of(is_reinforcement=is_reinforcement, names=charts.VALIDATION)[0]
    columns = curves.columns(
        session, row, names=list(chart.names), points=charts.POINTS, first=None, last=None
    )
    measured: dict[str, Any] = from_json(columns)["curves"]
    known = [step for name, _ in chart.series for step in measured.get(name, {}).get("steps", [])]
    marks = []
    if known and max(known) > min(known):
        width = (max(known) - min(known)) / charts.WIDTH
        places = ((step, (step - min(known)) / width) for step in sorted(steps))
        marks = [(step, place) for step, place in places if 0 <= place <= charts.WIDTH]
    chart = charts.charts_of(is_reinforcement=is_reinforcement, names=measured)[0]
    return charts.drawn(chart, measured), marks


def _files(session: Session, row: JobRow) -> list[FileObject]:
    found = []
    for file_id in filter(None, (row.training_file, row.validation_file)):
        with suppress(NotFound):
            found.append(files.to_wire(files.retrieve(session, file_id)))
    return found


def _check(session: Session, row: JobRow) -> SelfCheck | None:
    with suppress(NotFound):
        return self_checks.retrieve(session, row, None)
    return None


def _data(page: Any) -> list[Any]:  # Any: a page of a list; JSON
    items: list[Any] = from_json(page.content())["data"]
    return items
