"""Requests in progress, and the sampling of their next tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from .cache import Prefix
from .protocol import Completion, Request
from .sampling import PenaltyState, Uniforms, sample
from .stopping import StopChecker


@dataclass(eq=False)
class Row:
    """Request in progress."""

    index: int
    request: Request
    uniforms: Uniforms
    stop_checker: StopChecker
    prefix: Prefix | None = None
    penalty_state: PenaltyState | None = None
    tokens: list[int] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    policy_logprobs: list[float] = field(default_factory=list)
    completion: Completion | None = None
    """Completion, set when the row has ended."""

    def add(self, token: int, sampling_logprob: float, policy_logprob: float) -> None:
        """Append the next token and its log-probs to the row."""
        self.tokens.append(token)
        self.sampling_logprobs.append(sampling_logprob)
        self.policy_logprobs.append(policy_logprob)
        if self.penalty_state is not None:
            self.penalty_state.add(token)
        end = self.stop_checker.check(token)
        if end is not None:
            self.completion = Completion(
                token_ids=self.tokens,
                sampling_logprobs=self.sampling_logprobs,
                policy_logprobs=self.policy_logprobs,
                finish_reason=end[0],
                stop_reason=end[1],
            )
            self.release()

    def release(self) -> None:
        """Drop the row's reference to the keys and values of its prompt. Their memory is freed when
        no row refers to them."""
        self.prefix = self.penalty_state = None


def sample_rows(rows: Sequence[Row], logits: torch.Tensor, on_end: Callable[[Row], None]) -> None:
    """Sample and append the next token of each row from logits [rows, V] in fp32.

    `on_end` is called with each row that ends."""
    by_params: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        by_params.setdefault(row.request.sampling, []).append(i)
    for indices in by_params.values():
        group = [rows[i] for i in indices]
        sampled = sample(
            logits if len(group) == len(rows) else logits[indices],
            group[0].request.sampling,
            [row.uniforms[len(row.tokens)] for row in group],
            [_penalty_state(row, logits) for row in group if row.request.sampling.has_penalties],
        )
        for i, row in enumerate(group):
            row.add(sampled.tokens[i], sampled.sampling_logprobs[i], sampled.policy_logprobs[i])
            if row.completion is not None:
                on_end(row)


def _penalty_state(row: Row, logits: torch.Tensor) -> PenaltyState:
    if row.penalty_state is None:
        row.penalty_state = PenaltyState(row.request.prompt_ids, logits.shape[1], logits.device)
    return row.penalty_state
