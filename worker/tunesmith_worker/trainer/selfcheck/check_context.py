"""What a self-check looks at, and what one check says about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from tunesmith_schema import GRPORecipe, Recipe
from tunesmith_worker.engine.model.base_model import Base
from tunesmith_worker.engine.model.embeddings import used_tokens
from tunesmith_worker.engine.patches.patch import Patched
from tunesmith_worker.engine.rollout import Request, RolloutEngine, SamplingParams
from tunesmith_worker.rundir.plan import DataPlan, LoadPlan, TrainPlan
from tunesmith_worker.trainer.auto.layouts import Layouts
from tunesmith_worker.trainer.auto.memory_plan import MemoryPlan
from tunesmith_worker.trainer.data.tokens import TokenizedRows

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


PROMPTS = 4
"""That are run, of the lengths there are: batches of unequal rows are what goes wrong."""

TokenIds = tuple[int, ...]
Row = tuple[TokenIds, TokenIds]
"""A prompt, and a completion of it of at least one token."""


class Prompt(Protocol):
    @property
    def prompt_ids(self) -> TokenIds: ...
    @property
    def text(self) -> str:
        """What `prompt_ids` say, the template's own words included."""


class Score(Protocol):
    """The training forward."""

    def __call__(
        self, rows: Sequence[Row], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """log p of every completion token under softmax(logits / temperature), and the entropy
        there in nats, if it is computed: fp32 [B, C], C the longest completion's tokens, anything
        beyond a row's end. Differentiable."""


@dataclass(frozen=True, kw_only=True)
class ReinforcementSubject:
    """A reinforcement run that is ready for its first step."""

    trainer: Untyped
    base: Base
    patched: Patched | None
    engine: RolloutEngine
    score: Score
    requests: Callable[[Sequence[TokenIds]], Sequence[Request]]
    """What the trainer asks its engine for, one request for each of these prompts."""
    prompts: Sequence[Prompt]
    recipe: Recipe
    load_plan: LoadPlan
    train_plan: TrainPlan
    free: int
    """Bytes on the model's device beside the weights: for the same weights in fp32, where they are
    16-bit."""
    optimizer_bytes: int
    """Of what the optimiser keeps for all that trains."""
    folder: Path
    """The run directory."""

    @property
    def model(self) -> Untyped:
        """With its adapter, if it has one."""
        return self.trainer.model

    @property
    def device(self) -> torch.device:
        device: torch.device = self.trainer.args.device
        return device

    @property
    def full(self) -> bool:
        return self.recipe.tuning == "full"

    @property
    def used_tokens(self) -> list[int]:
        return sorted({one for prompt in self.prompts for one in prompt.prompt_ids})

    @property
    def sampling(self) -> SamplingParams:
        """As the recipe has it."""
        grpo = self.recipe.grpo or GRPORecipe()
        return SamplingParams(
            temperature=grpo.temperature,
            top_k=grpo.top_k,
            top_p=grpo.top_p,
            min_p=grpo.min_p or 0.0,
        )

    def picked(self, room: int) -> list[TokenIds]:
        """Distinct prompts, evenly spaced by length from the shortest to the longest, to which
        `room` tokens can be added without a change of the model's law
        (engine/rollout/rope_tables.py)."""
        stable = getattr(self.engine, "stable_length", None)
        ids = {one.prompt_ids for one in self.prompts}
        fitting = [one for one in ids if stable is None or len(one) + room <= stable]
        ordered = sorted(fitting, key=lambda one: (len(one), one))
        last = len(ordered) - 1
        places = sorted({last * i // (PROMPTS - 1) for i in range(PROMPTS)}) if ordered else []
        return [ordered[place] for place in places]
