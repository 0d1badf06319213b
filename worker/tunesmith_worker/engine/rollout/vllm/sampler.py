"""Sampling inside vLLM, by the same code as in the native engine.

vLLM calls `RequestSampler` with the logits of each step. `RequestSampler` samples a token for each
request of our trainer and sets all other logits to minus infinity, so that vLLM's greedy decoding
chooses the sampled token. The trainer also needs two log-probs of the sampled token, which
`RequestSampler` writes into the logits (see wire.py). Only processes with vLLM import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.interface import MoveDirectionality

from ..protocol import NotFinite, SamplingParams
from ..sampling import PenaltyState, Uniforms, sample
from . import loaded
from .wire import KEY, NOT_FINITE, OTHER_WEIGHTS, encode, read_extra_args

Untyped = Any  # Any: vLLM is not typed here


@dataclass
class _Row:
    params: SamplingParams
    weights: str
    """Id of the weights that must be loaded; empty for no check."""
    uniforms: Uniforms
    prompt_ids: list[int]
    tokens: list[int]
    penalty_state: PenaltyState | None = None
    counted: int = 0
    """Number of tokens in `penalty_state`."""

    def penalties(self, logits: torch.Tensor) -> PenaltyState:
        if self.penalty_state is None:
            self.penalty_state = PenaltyState(self.prompt_ids, logits.shape[1], logits.device)
            self.counted = 0
        for token in self.tokens[self.counted :]:
            self.penalty_state.add(token)
        self.counted = len(self.tokens)
        return self.penalty_state


class RequestSampler(LogitsProcessor):  # type: ignore[misc]  # vLLM is not typed here
    """vLLM's logits processor. Requests of other programs are left unchanged; they lack
    `extra_args` from our trainer."""

    def __init__(self, vllm_config: Untyped, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}
        loaded.has_sampler = True

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Untyped) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt_ids, output_ids in batch_update.added:
            self._rows.pop(index, None)
            if params.extra_args and KEY in params.extra_args:
                seed, weights, sampling = read_extra_args(params.extra_args)
                self._rows[index] = _Row(
                    sampling, weights, Uniforms(seed), prompt_ids or [], output_ids
                )
        for first, second, direction in batch_update.moved:
            row, other = self._rows.pop(first, None), self._rows.pop(second, None)
            if row is not None:
                self._rows[second] = row
            if other is not None and direction == MoveDirectionality.SWAP:
                self._rows[first] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        groups: dict[SamplingParams, list[int]] = {}
        for index, row in self._rows.items():
            if row.weights in ("", loaded.weights):
                groups.setdefault(row.params, []).append(index)
            else:
                _signal(logits, index, OTHER_WEIGHTS)
        for params, indices in groups.items():
            _sample_rows(logits, params, indices, [self._rows[index] for index in indices])
        return logits


def _sample_rows(
    logits: torch.Tensor, params: SamplingParams, indices: list[int], rows: Iterable[_Row]
) -> None:
    rows = list(rows)
    places = torch.tensor(indices, device=logits.device)
    try:
        sampled = sample(
            logits[places],
            params,
            [row.uniforms[len(row.tokens)] for row in rows],
            [row.penalties(logits) for row in rows] if params.has_penalties else [],
        )
    except NotFinite:
        return _signal(logits, places, NOT_FINITE)
    tokens, first, second = encode(sampled, logits.shape[1])
    logits[places] = -torch.inf
    logits[places, tokens[0].to(logits.device)] = first.to(logits)
    if params.has_filters or params.has_penalties:
        logits[places, tokens[1].to(logits.device)] = second.to(logits)


def _signal(logits: torch.Tensor, places: torch.Tensor | int, value: float) -> None:
    """Report a problem to the trainer: in the rows `places` of the logits, set the logit of token 0
    to `value` and all other logits to minus infinity."""
    logits[places] = -torch.inf
    logits[places, 0] = value
