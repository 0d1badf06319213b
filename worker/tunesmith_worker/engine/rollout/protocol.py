"""Requests, completions and errors of a rollout engine, independent of model and trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from .figures import RolloutFigures

EngineName = Literal["vllm", "native", "transformers"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling distribution of a request.

    Sampling options have the same meaning as in transformers. Temperature 0, presence penalty and
    frequency penalty have the same meaning as in vLLM."""

    temperature: float = 1.0
    """Softmax temperature. 0 means greedy decoding; of equally likely tokens, the lowest id is
    chosen."""
    top_k: int = 0
    """Sample only from the k most likely tokens, and from tokens that are as likely as the k-th
    token. 0 means all tokens."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the smallest set of tokens whose probability sums to at least
    `top_p`."""
    min_p: float = 0.0
    """Sample only from tokens whose probability is at least `min_p` times the highest
    probability."""
    repetition_penalty: float = 1.0
    """For tokens in the prompt or completion, positive logits are divided by this number and
    negative logits are multiplied by it."""
    presence_penalty: float = 0.0
    """Number subtracted from the logits of tokens in the completion."""
    frequency_penalty: float = 0.0
    """Number subtracted from a token's logit for each occurrence in the completion."""

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
    """Request for one completion.

    The engine computes and stores a prompt only once for all requests with this prompt. The
    requests may be in any order and have different parameters."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    """Random seed from 0 to 2^64 - 1. The completion depends only on the request and the weights,
    not on other requests in the same call."""
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the completion; the stop token stays in the completion. Callers must include
    end-of-sequence tokens, because the engine does not add the model's end-of-sequence tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the tokens of the stop text stay in the completion."""

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
    """The completion ended with the stop token or stop text in `stop_reason`."""
    LENGTH = "length"
    """The completion reached `max_tokens` without a stop."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    token_ids: list[int]
    """Sampled token ids, including the stop token. Token ids are never decoded and encoded
    again."""
    sampling_logprobs: list[float]
    """Log-prob of each token in the sampling distribution, with temperature, penalties and filters;
    0 for greedy tokens."""
    policy_logprobs: list[float]
    """Log-prob of each token in `softmax(logits / temperature)`, without penalties or filters. The
    trainer's loss uses the log-prob of the same distribution. At temperature 0, log-probs are from
    `softmax(logits)`."""
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    """Stop token id or stop text; None if `max_tokens` ended the completion."""


OnCompletion = Callable[[int, Completion], None]
"""Callback that receives a request's index and completion. `generate` later returns the same
object."""


class RolloutEngine(Protocol):
    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """Generate completions with the current weights and return them in the order of requests.

        `on_completion` is called on the calling thread as soon as a completion ends. Generation
        waits for the callback, so callbacks must do slow work in another thread. The callback must
        not use the model, because an adapter may be folded into the weights. If the callback raises
        an exception, the rollout ends and the exception propagates."""


class ModelEngine(RolloutEngine, Protocol):
    """Rollout engine that generates with the current weights of a model in training."""

    interrupted: Callable[[], bool]
    """Function that is called between steps; generation raises Interrupted if it returns True."""

    @property
    def name(self) -> EngineName: ...

    @property
    def weights(self) -> Literal["merged", "in_place"]:
        """Layout of the weights for generation: a merged copy, or the training weights."""

    @property
    def figures(self) -> RolloutFigures:
        """Times, token counts and memory of the last `generate` call."""

    @property
    def batch_invariant(self) -> bool:
        """True if rounding is too small to make tokens depend on the batch size."""

    @property
    def stable_length(self) -> int | None:
        """Greatest sequence length before the RoPE frequencies change; None if they never
        change."""

    @property
    def samples_from_uniforms(self) -> bool:
        """True if tokens are sampled with the random numbers of sampling.py."""

    @property
    def follows_dtype(self) -> bool:
        """True if `generate` uses the model's current dtype and layers; False if the engine keeps
        the dtype and layers that the model had at the engine's start."""

    def start(self) -> None:
        """Start what `generate` needs and does not have yet, for example vLLM. Raises EngineLost,
        EngineUnavailable and UnsupportedModel."""

    def close(self) -> None:
        """Free memory and processes. The engine must not be used afterwards."""


class RolloutError(Exception):
    """Raised if generation is not possible; the message gives the reason."""


class Interrupted(RolloutError):
    """Raised if generation stopped because the caller no longer needs the completions."""


class UnsupportedModel(RolloutError):
    """Raised if the engine cannot reproduce a model's forward exactly."""


class EngineLost(RolloutError):
    """Raised if an engine in another process or library failed. The model itself is intact.
    Generation of the remaining requests can continue on a new engine."""


class EngineUnavailable(RolloutError):
    """Raised if an engine cannot serve a run until a person changes something. A restart of the
    engine or another attempt of the job would not help."""

    def __init__(self, reason: str, remedy: str) -> None:
        """`remedy`: sentence that tells the user how to make the engine usable."""
        super().__init__(reason)
        self.remedy = remedy


class NotFinite(RolloutError):
    """Raised if logits contain NaN or infinity, because of damaged weights or diverged training."""


class UnusableRequest(RolloutError):
    """Raised if the model or the tokenizer cannot process a request."""
