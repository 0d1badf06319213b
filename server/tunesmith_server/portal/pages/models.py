"""List of models: tuned models, grouped by base model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_schema import Model
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.tables import as_csv
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.catalogue import model_list
from tunesmith_server.services.catalogue.base_models import CHECKPOINT_MARK
from tunesmith_server.services.catalogue.model_list import ModelFilters

_ROWS = 50
_CSV_ROWS = 1000
_CSV = ("id", "base_model", "kind", "step", "bytes", "context_length", "job", "created_at")
_MOST_BASES = 200
"""Maximum number of base models on the page."""
_MAX_TEXT = 200
KINDS = {"lora": "Adapters", "full": "Full weights"}
_HERE = "/portal/models"


@dataclass(frozen=True, kw_only=True)
class ModelLine:
    """A tuned model as one row of the list."""

    model: Model

    @property
    def is_checkpoint(self) -> bool:
        return CHECKPOINT_MARK in self.model.id

    @property
    def kind(self) -> str:
        if self.is_checkpoint:
            return "Checkpoint"
        return "Full weights" if self.model.kind == "full" else "LoRA"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tuned models with the same base model."""

    base: str
    facts: Model | None
    """Base model of the group; None if no worker has it."""
    lines: Sequence[ModelLine]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Filters of the list, from the address."""

    text: str
    base: str
    kind: str
    has_checkpoints: bool
    after: str

    @property
    def is_filtered(self) -> bool:
        return bool(self.text or self.base or self.kind or self.has_checkpoints)

    def address(self, part: str = "", **changes: str) -> str:
        """Return the address of the list with these filters changed. `part`: text appended to the
        path of the page."""
        values = {
            "q": self.text, "base": self.base, "kind": self.kind,
            "checkpoints": "1" if self.has_checkpoints else "", "after": "", **changes,
        }  # fmt: skip
        query = urlencode({name: value for name, value in values.items() if value})
        return f"{_HERE}{part}?{query}" if query else f"{_HERE}{part}"

    def filters(self) -> ModelFilters:
        return ModelFilters(
            base=self.base or None,
            kind="lora" if self.kind == "lora" else "full" if self.kind == "full" else "tuned",
            text=self.text or None,
            checkpoints=self.has_checkpoints,
        )


def show(visit: Visit) -> Response:
    """Show the list; show only its models if a filter changed."""
    choice = _choice_of(visit)
    bases, _ = _list(visit, ModelFilters(kind="base"), limit=_MOST_BASES)
    found, has_more = _list(visit, choice.filters(), limit=_ROWS, after=choice.after or None)
    return visit.show(
        "models/list.html",
        choice=choice,
        bases=bases,
        groups=_groups(found, {model.id: model for model in bases}),
        kinds=KINDS,
        next_page=choice.address(after=found[-1].id) if has_more else "",
        base_names=_base_names(choice, bases, found),
        here=choice.address(after=choice.after),
        calls=[_call(choice)],
        page_keys=(("/", "Search"), ("j k", "Next or previous model"), ("o", "Open the model")),
    )


def table(visit: Visit) -> Response:
    """Return a CSV file of at most 1,000 tuned models that pass the filters."""
    found, _ = _list(visit, _choice_of(visit).filters(), limit=_CSV_ROWS)
    rows = (
        [
            model.id, model.base_model, ModelLine(model=model).kind, model.step, model.bytes,
            model.context_length, model.job_id, model.created,
        ]
        for model in found
    )  # fmt: skip
    return as_csv("models", _CSV, rows)


def _choice_of(visit: Visit) -> Choice:
    return Choice(
        text=visit.query("q").strip()[:_MAX_TEXT],
        base=visit.query("base")[:512],
        kind=visit.query("kind"),
        has_checkpoints=visit.query("checkpoints") == "1",
        after=visit.query("after")[:255],
    )


def _list(
    visit: Visit, filters: ModelFilters, *, limit: int, after: str | None = None
) -> tuple[list[Model], bool]:
    page = model_list.list_models(
        visit.session,
        visit.state.settings,
        after=after,
        limit=limit,
        filters=filters,
        serving=visit.state.inference.serving,
    )
    return [Model(**item) for item in from_json(page.content())["data"]], page.has_more


def _groups(found: Sequence[Model], bases: dict[str, Model]) -> list[Group]:
    """Return the models grouped by base model. The group with the newest model comes first."""
    lines: dict[str, list[ModelLine]] = {}
    for model in found:
        lines.setdefault(model.base_model or "", []).append(ModelLine(model=model))
    return [Group(base=base, facts=bases.get(base), lines=lines[base]) for base in lines]


def _base_names(choice: Choice, bases: Sequence[Model], found: Sequence[Model]) -> list[str]:
    names = {model.id for model in bases} | {model.base_model or "" for model in found}
    return sorted(filter(None, names | {choice.base}))


def _call(choice: Choice) -> Call:
    filters = choice.filters()
    named = (("base", filters.base), ("kind", filters.kind), ("text", filters.text))
    pairs = [(name, value) for name, value in named if value]
    checkpoints = [("checkpoints", "true")] if choice.has_checkpoints else []
    query = urlencode(pairs + checkpoints)
    arguments = [f"{name}={value!r}" for name, value in pairs]
    options = [f"--{name} {value!r}" for name, value in pairs]
    if checkpoints:
        arguments.append("checkpoints=True")
        options.append("--checkpoints")
    return Call(
        path=f"/v1/models?{query}",
        sdk=f"client.models.list({', '.join(arguments)})",
        cli=" ".join(["tunesmith models list", *options]),
    )


PAGES = [
    Page(path=_HERE, show=show, needs=("GET /models",)),
    Page(path=f"{_HERE}.csv", show=table, needs=("GET /models",)),
]
