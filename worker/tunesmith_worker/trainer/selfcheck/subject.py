"""What a self-check looks at, and what one check says about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tunesmith_schema import Recipe
from tunesmith_worker.engine.model.base_model import Base
from tunesmith_worker.engine.model.embeddings import used_tokens
from tunesmith_worker.engine.patches.patch import Patched
from tunesmith_worker.rundir.plan import DataPlan, LoadPlan, TrainPlan
from tunesmith_worker.trainer.auto.layouts import Layouts
from tunesmith_worker.trainer.auto.memory_plan import MemoryPlan
from tunesmith_worker.trainer.data.tokens import TokenizedRows

from .findings import Finding

Untyped = Any  # Any: transformers and TRL are not typed


class Tuned(Protocol):
    """What every run has that trains weights, whatever it learns from."""

    @property
    def trainer(self) -> Untyped: ...
    @property
    def model(self) -> Untyped:
        """With its adapter, if it has one."""

    @property
    def base(self) -> Base: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def train_plan(self) -> TrainPlan: ...
    @property
    def folder(self) -> Path:
        """The run directory."""

    @property
    def full(self) -> bool:
        """Every weight trains, not an adapter."""

    @property
    def used_tokens(self) -> list[int]:
        """Ids that occur in the data, ascending."""

    @property
    def optimizer_bytes(self) -> int:
        """Of what the optimiser keeps for all that trains."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A supervised run that is ready for its first step."""

    trainer: Untyped
    base: Base
    patched: Patched | None
    layouts: Layouts
    memory: MemoryPlan
    """Settled."""
    recipe: Recipe
    load_plan: LoadPlan
    data_plan: DataPlan
    train_plan: TrainPlan
    training: TokenizedRows
    training_file: Path
    folder: Path
    """The run directory."""

    @property
    def model(self) -> Untyped:
        """With its adapter, if it has one."""
        return self.trainer.model

    @property
    def full(self) -> bool:
        return self.recipe.tuning == "full"

    @property
    def used_tokens(self) -> list[int]:
        return used_tokens(self.training.dataset)

    @property
    def optimizer_bytes(self) -> int:
        tuning = self.memory.planner.tuning
        return int(tuning.trained * tuning.optimizer_bytes)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    check: str
    state: Literal["passed", "failed", "not_applicable", "skipped"]
    detail: str
    """The figure that it passed with, or why it did not run."""
    findings: tuple[Finding, ...] = ()


def passed(check: str, detail: str, *findings: Finding) -> Outcome:
    """`findings`: warnings."""
    return Outcome(check=check, state="passed", detail=detail, findings=findings)


def not_applicable(check: str, why: str) -> Outcome:
    return Outcome(check=check, state="not_applicable", detail=why)


def judged(check: str, findings: Sequence[Finding], detail: str) -> Outcome:
    """Failed if any finding is an error."""
    state: Literal["passed", "failed"] = "passed"
    if any(one.level == "error" for one in findings):
        state = "failed"
    return Outcome(check=check, state=state, detail=detail, findings=tuple(findings))
