"""Generate greedy answers to prompts with transformers' `generate`, for every model family."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

Untyped = Any  # Any: transformers is not typed

MAX_ANSWERS = 8
"""Largest number of prompts in one call."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    token_ids: list[int]
    """Generated token ids, including the end token."""
    ended: bool
    """True if the answer ends with an end token; False if `max_tokens` or `max_seconds` ended
    it."""


def greedy_answers(
    model: Untyped,
    prompts: Sequence[Sequence[int]],
    *,
    pad_token_id: int,
    end_tokens: frozenset[int],
    max_tokens: int,
    max_seconds: float,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Answer]:
    """Generate the most likely continuation of each prompt, token by token, in one batch.

    `prompts`: token ids of at most MAX_ANSWERS prompts. `end_tokens`: tokens that end an answer.
    `max_tokens`: maximum number of tokens of an answer. `max_seconds`: time limit in seconds, after
    which all unfinished answers end. The function does not change the model's training or
    evaluation mode. Raises ValueError for an empty prompt or for too many prompts."""
    if len(prompts) > MAX_ANSWERS or not all(map(len, prompts)):
        raise ValueError(f"prompts must be 1 to {MAX_ANSWERS} lists of at least one token")
    if not prompts:
        return []
    device = next(model.parameters()).device
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad_token_id)
    mask = torch.zeros((len(prompts), longest), dtype=torch.int64)
    for place, prompt in enumerate(prompts):  # padded on the left: generation appends on the right
        ids[place, longest - len(prompt) :] = torch.tensor(prompt)
        mask[place, longest - len(prompt) :] = 1
    deadline = time.monotonic() + max_seconds

    def late(input_ids: torch.Tensor, scores: Untyped, **_: Untyped) -> torch.Tensor:
        return torch.full((len(input_ids),), time.monotonic() > deadline, device=input_ids.device)

    with torch.no_grad(), autocast():
        output = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            max_new_tokens=max_tokens,
            pad_token_id=pad_token_id,
            eos_token_id=sorted(end_tokens) or None,
            use_cache=True,
            stopping_criteria=[late],
        )
    return [_answer(tokens, end_tokens) for tokens in output[:, longest:].tolist()]


def _answer(tokens: Sequence[int], end_tokens: frozenset[int]) -> Answer:
    for place, token in enumerate(tokens):
        if token in end_tokens:
            return Answer(token_ids=list(tokens[: place + 1]), ended=True)
    return Answer(token_ids=list(tokens), ended=False)
