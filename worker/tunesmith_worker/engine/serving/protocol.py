"""Requests, outputs and errors of a serving engine.

An engine generates completions for many callers at the same time. A serving engine handles token
ids and text, but neither HTTP nor jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tunesmith_worker.engine.rollout import SamplingParams

log = logging.getLogger(__name__)

MAX_TOP_LOGPROBS = 20
UNLOADED = "the model was unloaded"
AGAIN = "send the request again"


class ServingError(Exception):
    """Raised if a request cannot be answered; the message gives the reason."""


def cannot_load(what: str, error: Exception) -> ServingError:
    """Log the reason, which may name files of the host. Return an error without the reason."""
    log.error("%s cannot be loaded: %s", what, error, exc_info=error)
    return ServingError(f"{what} cannot be loaded: the log of the inference process has the reason")


class QueueFull(ServingError):
    """Raised if too many requests wait. `retry_after`: seconds until the next try."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnusableGrammar(ServingError):
    """Raised if a JSON schema is invalid or uses keywords that the engine does not support."""


class DoesNotFit(ServingError):
    """Raised if the memory budget is too small for a model or for one request."""


class UnusableOutput(Exception):
    """Raised if one request cannot continue. The message gives the reason."""


class UnsupportedAdapter(ServingError):
    """Raised if the native engine cannot compute an adapter exactly as PEFT does."""


PrefixSpace = tuple[str | None, str]
"""Pair of adapter and cache salt; only requests with equal pairs may share attention keys and
values."""


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Request for one completion."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    """Seed, 0 to 2^64 - 1. The completion depends only on the request and the weights."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    """Texts that end the completion. The text of the completion ends before the stop text."""
    adapter: str | None = None
    """Name of a loaded adapter; None for the base model."""
    cache_salt: str = ""
    """Only requests with the same salt use each other's attention keys and values."""
    top_logprobs: int | None = None
    """Number of most likely tokens to report per token; None means no log-probs at all."""
    prompt_logprobs: bool = False
    """True to report the log-probs of the prompt's tokens too, each with the `top_logprobs` most
    likely tokens."""
    json_schema: str | None = None
    """JSON schema, as JSON text, that the completion must satisfy."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-prob of a token in `log_softmax(logits)`, without temperature, penalties or filters."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenScores:
    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]
    """Most likely tokens, most likely first."""


@dataclass(slots=True)
class Output:
    """Progress of one request in one step."""

    stream: Stream
    text: str
    """New text; may be empty while a character or a possible stop text is incomplete."""
    token_ids: tuple[int, ...]
    """New tokens, including those of a stop text and end-of-sequence tokens."""
    scores: tuple[TokenScores, ...] = ()
    """One entry per new token if the request asks for log-probs."""
    finish: Finish | None = None
    prompt_scores: tuple[TokenScores, ...] = ()
    """Scores of the prompt's tokens, starting with the second token; only in the first output of a
    request with `prompt_logprobs`."""
    error: Exception | None = None
    """Reason why the request ended without a result."""


@dataclass(eq=False, slots=True)
class Stream:
    """A request and the receiver of its outputs."""

    request: Generation
    deliver: Deliver
    """Function that receives the stream's outputs. In each step, the engine's thread calls each
    function once, with the outputs of all streams that have this function."""
    tag: object = None
    """Any value that the caller sets; the engine does not read the value."""
    cached_tokens: int = 0
    """Number of prompt tokens whose attention keys and values are reused from another request."""

    @property
    def prefix_space(self) -> PrefixSpace:
        return self.request.adapter, self.request.cache_salt


Deliver = Callable[[Sequence[Output]], None]


@dataclass(kw_only=True)
class Figures:
    """Numbers that describe the state of an engine."""

    running: int = 0
    queued: int = 0
    live_tokens: int = 0
    """Number of tokens whose attention keys and values are in memory for running requests."""
    kept_tokens: int = 0
    """Number of tokens whose attention keys and values are kept from finished requests."""
    cache_bytes: int = 0
    cancelled: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0


class ServingEngine(Protocol):
    name: str
    """Name of the engine: `native` or `transformers`."""
    context: int | None
    """Maximum number of token positions; None if the model has no maximum."""

    def submit(self, streams: Sequence[Stream]) -> None:
        """Add requests to the queue. Raises QueueFull or UnusableGrammar; in both cases, no request
        is queued."""

    def cancel(self, streams: Sequence[Stream]) -> None:
        """End requests and free their memory before the next step; no further output follows."""

    def add_adapter(self, name: str, folder: str) -> None:
        """Load a PEFT adapter. Raises UnsupportedAdapter and ServingError."""

    def remove_adapter(self, name: str) -> None:
        """Free an adapter's memory. When this method is called, no request may use the adapter."""

    def limit_cache(self, cache_bytes: int) -> None:
        """Change the maximum size in bytes of all attention keys and values, without waiting. Kept
        sequences that do not fit are dropped; running requests keep their memory."""

    def rest(self, share: float) -> None:
        """Pause after each step for `share` times the step's time, so that other processes can use
        the CPU and its caches. 0 (the default) means no pause."""

    def figures(self) -> Figures:
        """Return the current state, without waiting for a step."""

    def close(self, reason: str = UNLOADED) -> None:
        """End the engine's thread and free its memory; running requests end with an error that
        gives the reason."""
