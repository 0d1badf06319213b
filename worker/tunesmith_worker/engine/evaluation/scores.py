"""Loss and token accuracy of a model, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tunesmith_worker.engine.memory.retry import release_cached_memory
from tunesmith_worker.engine.patches.batch_layout import BatchLayout, batch_layout
from tunesmith_worker.rundir.errors import is_out_of_memory

Untyped = Any  # Any: transformers and TRL are not typed

IGNORED = -100
"""Label of tokens outside of answers."""
_FIRST, _GROUP = 8, 64
"""Number of rows in the first group of scored rows, and maximum number of rows in a later group.

The rows of a group are sorted by length, so that batches need little padding.
"""


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of N tokens: its token ids, and its labels (IGNORED outside of answers)."""

    input_ids: Sequence[int]
    labels: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class RowScores:
    """Scores of R rows under one model."""

    nll: NDArray[np.float64]
    """Negative log-likelihood of the answer tokens in nats, summed per row, [R]."""
    tokens: NDArray[np.int64]
    """Number of answer tokens per row, [R]."""
    correct: NDArray[np.int64]
    """Number of answer tokens per row that are the model's most likely token, [R]."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of an answer token, in nats."""
        return float(self.nll.sum() / max(1, self.tokens.sum()))

    @property
    def perplexity(self) -> float:
        """Perplexity, exp(loss); infinity if exp(loss) is too large for a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def accuracy(self) -> float:
        """Share of the answer tokens that are the model's most likely token."""
        return float(self.correct.sum() / max(1, self.tokens.sum()))

    def first(self, rows: int) -> RowScores:
        """Return the scores of only the first `rows` rows."""
        return RowScores(
            nll=self.nll[:rows], tokens=self.tokens[:rows], correct=self.correct[:rows]
        )


def score_rows(
    model: Untyped,
    rows: Sequence[ScoredRow],
    *,
    pad_token_id: int,
    max_tokens: int,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    enough: Callable[[int], bool] = lambda done: False,
) -> RowScores:
    """Compute the scores of `rows`, in their order.

    `model`: a causal language model, with or without PEFT. Its loss head is TRL's fused head
    (`add_fused_lm_head`), or that of head.py or own_head.py in engine/patches. The function does
    not change the model's training or evaluation mode. `max_tokens`: maximum number of tokens,
    padding included, in a forward pass of several rows. Each out-of-memory error halves this
    maximum. `enough`: function that is called after each group of rows with the number of rows
    scored so far. If `enough` returns True, scoring stops, and only the scores of the rows scored
    so far are returned. Raises ValueError without rows."""
    if not rows:
        raise ValueError("there are no rows to score")
    parts: list[RowScores] = []
    limit, done = max_tokens, 0
    while done < len(rows) and not (done and enough(done)):
        group = rows[done : done + min(_GROUP, max(_FIRST, done // 2))]
        try:
            part = _score_group(model, group, pad_token_id, limit, autocast)
        except Exception as error:  # out of memory has several types
            if not is_out_of_memory(error) or limit <= min(len(row.input_ids) for row in group):
                raise
            part = None
        if part is None:  # outside of `except`, so that the failed tensors are freed
            release_cached_memory()
            limit //= 2
            continue
        parts.append(part)
        done += len(group)
    return RowScores(
        nll=np.concatenate([part.nll for part in parts]),
        tokens=np.concatenate([part.tokens for part in parts]),
        correct=np.concatenate([part.correct for part in parts]),
    )


def _score_group(
    model: Untyped,
    rows: Sequence[ScoredRow],
    pad_token_id: int,
    max_tokens: int,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> RowScores:
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].input_ids))
    scores = np.zeros((3, len(rows)))
    for batch in _batches(order, [len(row.input_ids) for row in rows], max_tokens):
        scores[:, batch] = _forward(model, [rows[i] for i in batch], pad_token_id, autocast)
    return RowScores(
        nll=scores[0], tokens=scores[1].astype(np.int64), correct=scores[2].astype(np.int64)
    )


def _batches(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return batches of row indices. A batch of several rows has at most `max_tokens` tokens,
    padding included. `order`: all row indices, shortest row first."""
    batches: list[list[int]] = []
    for index in order:
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _forward(
    model: Untyped,
    rows: Sequence[ScoredRow],
    pad_token_id: int,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> NDArray[np.float64]:
    """Return three values for each row of a batch, [3, rows]: the sum of the losses of its answer
    tokens, the number of answer tokens, and the number of correct answer tokens."""
    longest = max(len(row.input_ids) for row in rows)
    ids = torch.full((len(rows), longest), pad_token_id)
    labels = torch.full((len(rows), longest), IGNORED)
    mask = torch.zeros((len(rows), longest), dtype=torch.int64)
    for place, row in enumerate(rows):
        length = len(row.input_ids)
        ids[place, :length] = torch.tensor(row.input_ids)
        labels[place, :length] = torch.tensor(row.labels)
        mask[place, :length] = 1
    labels[:, 0] = IGNORED  # no token predicts the first token
    device = next(model.parameters()).device
    with torch.no_grad(), autocast(), batch_layout(BatchLayout(bounds=None)):
        outputs = model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            labels=labels.to(device),
            use_cache=False,
            fused_lm_head=True,
        )
    answer = (labels[:, 1:] != IGNORED).to(device)
    sums = torch.stack(
        [
            -outputs.log_probs.double().masked_fill(~answer, 0.0).sum(1),
            answer.double().sum(1),
            outputs.is_top1.double().masked_fill(~answer, 0.0).sum(1),
        ]
    )
    return sums.cpu().numpy()
