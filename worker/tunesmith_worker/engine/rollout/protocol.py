"""What a rollout engine is asked and what it answers. Knows no model, no trainer and no text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The law that tokens are drawn from, with the meaning these words have in transformers (and in
    vLLM: temperature 0, presence and frequency penalty)."""

    temperature: float = 1.0
    """0: greedy, the first of the largest logits."""
    top_k: int = 0
    """Only tokens at least as likely as the k-th; 0: all."""
    top_p: float = 1.0
    """The least set of most likely tokens with this much probability."""
    min_p: float = 0.0
    """Only tokens with at least this share of the most likely one's probability."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens in prompt and completion, multiplies negative ones."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens in the completion."""
    frequency_penalty: float = 0.0
    """Taken from them once for each time."""

    def __post_init__(self) -> None:
        bounds = {
            "temperature": (0.0, float("inf")),
            "top_k": (0, 1 << 31),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
        }
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be {least} to {most}, got {getattr(self, name)}")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")

    @property
    def has_filters(self) -> bool:
        """Whether tokens of the model's own law are left out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion. Requests with equal prompts share the prompt's computation and memory,
    whatever their order and parameters."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    """0 to 2^64 - 1. The completion depends on the request and the weights alone: not on what else
    is asked at the same time."""
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: frozenset[int] = frozenset()
    """End the completion, and are its last token. The model's own are not implied."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the tokens that complete one are kept."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids must hold at least one token")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be 0 to 2^64 - 1, got {self.seed}")
        if "" in self.stop:
            raise ValueError("stop must not hold an empty text")


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop token or a stop text; `stop_reason` says which."""
    LENGTH = "length"
    """`max_tokens` tokens were drawn, and no stop."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    token_ids: list[int]
    """What was drawn, never decoded and encoded again; with the token that ended it."""
    sampling_logprobs: list[float]
    """Of each token under the law it was drawn from: temperature, penalties and filters included.
    Greedy tokens were certain: 0."""
    policy_logprobs: list[float]
    """Of each token under softmax(logits / temperature), nothing penalised or left out: what a
    trainer's forward computes at the same temperature (at temperature 0: of the logits)."""
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    """The stop token's id, or the stop text; None where the length ended it."""


OnCompletion = Callable[[int, Completion], None]
"""Told a request's place in the list, and its completion: the very object that is returned."""


class RolloutEngine(Protocol):
    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """The completions, in the order of the requests, under the weights as they now are.

        `on_completion` is called once for each request as soon as it ends, on the calling thread,
        while others are still drawn: hand what takes long to another thread. An adapter may be
        folded into the weights meanwhile, so it must not use the model. What it raises ends the
        rollout and is raised here."""


class RolloutError(Exception):
    """Rollouts cannot be had here as asked; the message says why."""


class Interrupted(RolloutError):
    """Whoever asked has no use for the completions any more."""


class UnsupportedModel(RolloutError):
    """The engine does not compute this model exactly, so it does not compute it at all."""


class NotFinite(RolloutError):
    """The model's logits are no numbers: its weights are damaged, or its training has diverged."""


class UnusableRequest(RolloutError):
    """A request that this model or tokenizer cannot answer."""
