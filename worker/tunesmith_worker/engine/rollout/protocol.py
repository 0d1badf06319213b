"""Requests, completions and errors of a rollout engine, independent of model and trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling distribution of a request. Options mean the same as in transformers; temperature 0,
    presence and frequency penalty mean the same as in vLLM."""

    temperature: float = 1.0
    """0: greedy decoding; the lowest token id wins a tie."""
    top_k: int = 0
    """Sample from the k most likely tokens (and ties with the k-th); 0: from all tokens."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the smallest set of tokens whose probability sums to at least
    this."""
    min_p: float = 0.0
    """Sample from tokens with at least this fraction of the highest probability."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or completion."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the completion."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once per occurrence in the completion."""

    def __post_init__(self) -> None:
        bounds = {
            "temperature": (0.0, float("inf")),
            "top_k": (0, 1 << 31),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be {low} to {high}, got {getattr(self, name)}")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")

    @property
    def has_filters(self) -> bool:
        """True if top-k, top-p or min-p removes tokens."""
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
    """Request for one completion. Requests with equal prompts share the prompt's computation and
    memory, in any order and with any parameters."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    """0 to 2^64 - 1. The completion depends only on the request and the weights, not on other
    requests of the same call."""
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the completion; the completion includes them. The model's end-of-sequence
    tokens are not added."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the completion includes their tokens."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids must contain at least one token")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be 0 to 2^64 - 1, got {self.seed}")
        if "" in self.stop:
            raise ValueError("stop must not contain an empty text")


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop token or a stop text, named by `stop_reason`."""
    LENGTH = "length"
    """`max_tokens` tokens without a stop."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    token_ids: list[int]
    """Sampled tokens, including the stop token; never decoded and encoded again."""
    sampling_logprobs: list[float]
    """Log-probability of each token under the distribution it was sampled from, with temperature,
    penalties and filters; 0 for greedy tokens."""
    policy_logprobs: list[float]
    """Log-probability of each token under softmax(logits / temperature), without penalties or
    filters, as a trainer's forward computes it; at temperature 0 under softmax(logits)."""
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    """Stop token id or stop text; None if `max_tokens` ended the completion."""


OnCompletion = Callable[[int, Completion], None]
"""Receives the index of a request and its completion (the object that `generate` returns)."""


class RolloutEngine(Protocol):
    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """Return the completions in the order of the requests, generated with the current weights.

        `on_completion` is called once per request, as soon as its completion ends, on the calling
        thread; generation waits for it, so hand slow work to another thread. It must not use the
        model: an adapter may be folded into the weights. Its exceptions end the rollout and
        propagate to the caller."""


class RolloutError(Exception):
    """Generation is not possible; the message gives the reason."""


class Interrupted(RolloutError):
    """The caller no longer needs the completions."""


class UnsupportedModel(RolloutError):
    """The engine cannot reproduce this model's forward exactly."""


class NotFinite(RolloutError):
    """The model's logits contain NaN or infinity: damaged weights or diverged training."""


class UnusableRequest(RolloutError):
    """A request that does not fit this model or tokenizer."""
