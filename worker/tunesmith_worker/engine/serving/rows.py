"""Requests in progress: their tokens, text, random numbers and stop conditions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tunesmith_worker.engine.rollout.sampling import PenaltyState, Uniforms, sample

from .cache import PromptBuffer
from .grammar import Matcher
from .prompt_scores import PromptScores
from .protocol import Finish, Generation, Output, Stream, TokenLogprob, TokenScores, UnusableOutput
from .text import TextStream

Untyped = Any  # Any: tokenizers is not typed

_NOT_FINITE = "the model's logits are not finite: its weights are damaged or its training diverged"


@dataclass(eq=False)
class Row:
    """One request in progress. `tokens`: the prompt and the completion so far. The attention keys
    and values of the first `cached` tokens are in `buffer` while the prompt is computed, and later
    in a slot of the cache."""

    stream: Stream
    text: TextStream
    uniforms: Uniforms
    matcher: Matcher | None
    prompt_scores: PromptScores | None = None
    """Scores of the prompt; None after the scores are delivered or if the request needs none."""
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    rope_key: int = 0
    buffer: PromptBuffer | None = None
    penalties: PenaltyState | None = None
    done: bool = False
    broken: bool = False
    """True if the request's logits are not finite; its cached keys and values may then contain NaN
    or infinity too."""

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.stream.request.prompt_ids)

    @property
    def pending(self) -> int:
        """Number of tokens without cached keys and values."""
        return len(self.tokens) - self.cached

    def add(self, token: int, scores: tuple[TokenScores, ...]) -> Output:
        """Append a sampled token; return the output that the caller gets for this token."""
        request = self.stream.request
        self.tokens.append(token)
        if self.penalties is not None:
            self.penalties.add(token)
        complete = self.matcher is not None and self.matcher.add(token)
        text, finish = "", None
        if token in request.stop_token_ids:
            finish = Finish.STOP
        else:
            text = self.text.add(token)
            if self.text.stopped or complete:
                finish = Finish.STOP
            elif self.generated >= request.max_tokens:
                finish = Finish.LENGTH
        if finish is not None:
            text += self.text.finish()
            if self.text.stopped:
                finish = Finish.STOP
            self.done = True
        prompt_scores: tuple[TokenScores, ...] = ()
        if self.prompt_scores is not None:
            prompt_scores, self.prompt_scores = tuple(self.prompt_scores.found), None
        return Output(self.stream, text, (token,), scores, finish, prompt_scores)


def prompt_scores_of(request: Generation) -> PromptScores | None:
    """Return the collector of the prompt's log-probs; None if the request needs none."""
    if not request.prompt_logprobs:
        return None
    return PromptScores(request.prompt_ids, request.top_logprobs or 0)


def sample_rows(rows: list[Row], logits: torch.Tensor) -> list[Output]:
    """Sample the next token of each request from its row of the fp32 logits [rows, V].

    The function may overwrite the logits. A request that fails ends with an error and does not
    affect other requests."""
    failed: list[Output] = []
    masks: dict[int, torch.Tensor] = {}
    finite = [] if bool(logits.isfinite().all()) else logits.isfinite().all(-1).tolist()
    for i, row in enumerate(rows):
        try:
            if finite and not finite[i]:
                row.broken = True
                raise UnusableOutput(_NOT_FINITE)
            if row.matcher is not None:
                masks[id(row)] = row.matcher.mask(logits.shape[1], logits.device)
        except Exception as error:  # a failed row must not end the others
            failed.append(_failed(row, error))
    if failed:
        good = [i for i, row in enumerate(rows) if not row.done]
        rows, logits = [rows[i] for i in good], logits[good]
    return failed + (_sample(rows, logits, masks) if rows else [])


def _failed(row: Row, error: Exception) -> Output:
    row.done = True
    return Output(row.stream, "", (), error=error)


def _sample(rows: list[Row], logits: torch.Tensor, masks: dict[int, torch.Tensor]) -> list[Output]:
    """Sample a token for each request.

    `masks`: forbidden tokens as a bool mask [V], keyed by `id(row)`.
    """
    scored = [i for i, row in enumerate(rows) if row.stream.request.top_logprobs is not None]
    log_probs = None
    if scored:
        raw = logits if len(scored) == len(rows) else logits[scored]
        log_probs = dict(zip(scored, raw.log_softmax(-1), strict=True))
    groups: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.stream.request.sampling, []).append(i)
    tokens = [0] * len(rows)
    for members in groups.values():
        part = logits if len(members) == len(rows) else logits[members]
        chosen = [rows[i] for i in members]
        for row, own in zip(chosen, part, strict=True):
            if id(row) in masks:
                own.masked_fill_(masks[id(row)], -torch.inf)
        params = chosen[0].stream.request.sampling
        states = [_penalties(row, own) for row, own in zip(chosen, part, strict=True)]
        if params.temperature == 0.0 and not params.has_penalties:
            sampled = part.argmax(-1).tolist()
        else:
            uniforms = [row.uniforms[row.generated] for row in chosen]
            given = [state for state in states if state is not None]
            sampled = sample(part, params, uniforms, given).tokens
        for i, token in zip(members, sampled, strict=True):
            tokens[i] = token
    outputs = []
    for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        scores: tuple[TokenScores, ...] = ()
        if log_probs is not None and i in log_probs:
            scores = (_scores(log_probs[i], token, row.stream.request.top_logprobs or 0),)
        try:
            outputs.append(row.add(token, scores))
        except Exception as error:  # a failed row must not end the others
            outputs.append(_failed(row, error))
    return outputs


def _penalties(row: Row, logits: torch.Tensor) -> PenaltyState | None:
    if not row.stream.request.sampling.has_penalties:
        return None
    if row.penalties is None:
        prompt = row.stream.request.prompt_ids
        row.penalties = PenaltyState(prompt, len(logits), logits.device)
        for token in row.tokens[len(prompt) :]:
            row.penalties.add(token)
    return row.penalties


def _scores(log_probs: torch.Tensor, token: int, top: int) -> TokenScores:
    sampled = TokenLogprob(token, float(log_probs[token]))
    if not top:
        return TokenScores(sampled, ())
    values, ids = log_probs.topk(min(top, len(log_probs)))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return TokenScores(sampled, tuple(TokenLogprob(i, v) for i, v in pairs))
