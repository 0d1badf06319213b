"""What a self-check looks at, and what one check says about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tunesmith_schema import Recipe

from ..data.tokens import TokenizedRows
from ..model import Base
from ..patches.patch import Patched
from ..plan import DataPlan, LoadPlan, TrainPlan
from ..trainers.layouts import Layouts
from ..trainers.memory_plan import MemoryPlan
from .findings import Finding

Untyped = Any  # Any: transformers and TRL are not typed


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run that is ready for its first step."""

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
