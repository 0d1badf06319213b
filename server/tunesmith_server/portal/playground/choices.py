"""Models that the playground offers, and the models that it selects at the first visit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import from_json

from tunesmith_server.portal.visit import Visit
from tunesmith_server.services.catalogue import base_models, model_list

_MOST = 500


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Models of the project and models shared with it: first base models, then tuned models and
    checkpoints, newest first."""

    bases: Mapping[str, str | None]
    """Base model of each model. The keys are model names; the value of a base model is None."""

    def label(self, name: str) -> str:
        """Return a text that tells the kind of a model."""
        base = self.bases.get(name)
        if base is None:
            return "base model"
        is_checkpoint = base_models.CHECKPOINT_MARK in name
        return f"{'checkpoint' if is_checkpoint else 'tuned'}, base {base}"

    def first(self) -> list[str]:
        """Return the names of two models: the base model of the newest tuned model, then this tuned
        model. If there is no tuned model, return one base model."""
        for name, base in self.bases.items():
            if base is not None and base_models.CHECKPOINT_MARK not in name:
                return [base, name]
        return [*self.bases][:1]


NONE = Choices(bases={})


def read(visit: Visit) -> Choices:
    page = model_list.list_models(
        visit.session, visit.state.settings, after=None, limit=_MOST,
        filters=model_list.ModelFilters(checkpoints=True), serving=visit.state.inference.serving,
    )  # fmt: skip
    items = from_json(page.content())["data"]
    return Choices(bases={item["id"]: item.get("base_model") for item in items})
