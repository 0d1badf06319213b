"""Contexts: the objects of a run that the checks need, such as its model, data and plans."""

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
from tunesmith_worker.engine.rollout import ModelEngine, Request, SamplingParams
from tunesmith_worker.rundir.plan import DataPlan, LoadPlan, TrainPlan
from tunesmith_worker.trainer.auto.layouts import Layouts
from tunesmith_worker.trainer.auto.memory_plan import MemoryPlan
from tunesmith_worker.trainer.data.tokens import TokenizedRows

Untyped = Any  # Any: transformers and TRL are not typed


class CheckContext(Protocol):
    """Attributes that every training run has."""

    @property
    def trainer(self) -> Untyped: ...
    @property
    def model(self) -> Untyped:
        """The model, with its adapter if any."""

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
        """True if all weights train instead of an adapter."""

    @property
    def used_tokens(self) -> list[int]:
        """Token ids that occur in the run's data, in ascending order."""

    @property
    def optimizer_bytes(self) -> int:
        """Size in bytes of the optimizer's state for all trained weights."""


@dataclass(frozen=True, kw_only=True)
class SupervisedContext:
    """A supervised run before its first step."""

    trainer: Untyped
    base: Base
    patched: Patched | None
    layouts: Layouts
    memory: MemoryPlan
    """The final memory plan."""
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
"""Number of prompts in the checks that run the model.

The prompts have different lengths, because equal lengths hide most faults.
"""

TokenIds = tuple[int, ...]
PromptAndCompletion = tuple[TokenIds, TokenIds]
"""Token ids of a prompt and of a completion with at least one token."""


class Prompt(Protocol):
    @property
    def prompt_ids(self) -> TokenIds: ...
    @property
    def text(self) -> str:
        """The text of `prompt_ids`, with the chat template's markup."""


class Score(Protocol):
    """Function that runs the training forward pass."""

    def __call__(
        self, rows: Sequence[PromptAndCompletion], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return log-probabilities under softmax(logits / temperature), and entropies in nats.

        Log-probs and entropies are differentiable fp32 [B, C], where C is the length of the longest
        completion. Log-probs and entropies after the end of a row are undefined. Entropies may be
        None.
        """


@dataclass(frozen=True, kw_only=True)
class ReinforcementContext:
    """A reinforcement run before its first step."""

    trainer: Untyped
    base: Base
    patched: Patched | None
    engine: ModelEngine
    score: Score
    requests: Callable[[Sequence[TokenIds]], Sequence[Request]]
    """Function that returns the rollout requests that the trainer makes for the prompts."""
    prompts: Sequence[Prompt]
    recipe: Recipe
    load_plan: LoadPlan
    train_plan: TrainPlan
    free: int
    """Free bytes on the model's device, which limit the conversion of weights to fp32."""
    optimizer_bytes: int
    """Size in bytes of the optimizer's state for all trained weights."""
    folder: Path
    """The run directory."""

    @property
    def model(self) -> Untyped:
        """The model, with its adapter if any."""
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
        return sorted({token for prompt in self.prompts for token in prompt.prompt_ids})

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters of the recipe."""
        grpo = self.recipe.grpo or GRPORecipe()
        return SamplingParams(
            temperature=grpo.temperature,
            top_k=grpo.top_k,
            top_p=grpo.top_p,
            min_p=grpo.min_p or 0.0,
        )

    def select_prompts(self, room: int) -> list[TokenIds]:
        """Return distinct prompts, evenly spaced by length from the shortest to the longest.

        The position encoding of some models changes above a certain length
        (engine/rollout/rope_tables.py). A prompt is left out if the prompt plus `room` tokens would
        exceed this length.
        """
        stable = self.engine.stable_length
        ids = {prompt.prompt_ids for prompt in self.prompts}
        fitting = [prompt for prompt in ids if stable is None or len(prompt) + room <= stable]
        ordered = sorted(fitting, key=lambda prompt: (len(prompt), prompt))
        last = len(ordered) - 1
        places = sorted({last * i // (PROMPTS - 1) for i in range(PROMPTS)}) if ordered else []
        return [ordered[place] for place in places]
