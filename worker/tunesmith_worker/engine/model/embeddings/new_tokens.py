"""Implement `recipe.add_tokens`: add tokens to the tokenizer and their rows to the model.

The original tokenizer splits a new token into several old tokens. In the embedding and in the head,
the new token's row starts as the mean of the old tokens' rows. The new token's logit is then the
mean of the old tokens' logits (Hewitt 2021,
https://nlp.stanford.edu/~johnhew/vocab-expansion.html). Therefore, the new token is never more
likely than the most likely of these old tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken

from tunesmith_worker.rundir.events import EventLog

from .matrices import Matrices, mean_row

Untyped = Any  # Any: transformers is not typed


@dataclass(frozen=True, kw_only=True)
class NewTokens:
    """The added tokens and the size of the vocabulary."""

    ids: tuple[int, ...] = ()
    """Ids of the added tokens."""
    rows_before: int
    """Number of rows of the base model's embedding."""
    rows: int
    """Number of rows after adding the tokens."""

    @property
    def resized(self) -> bool:
        return self.rows > self.rows_before


def add_tokens(
    model: Untyped, tokenizer: Untyped, tokens: Sequence[str], events: EventLog
) -> NewTokens:
    """Add `tokens` to `tokenizer` and `model`, in place.

    New tokens first use spare rows, which pad the vocabulary beyond the tokenizer's size. The model
    grows only if there are too few spare rows."""
    before = int(model.get_input_embeddings().num_embeddings)
    pieces = {token: _pieces(tokenizer, token) for token in tokens}
    present = [token for token in tokens if _is_one(tokenizer, token, pieces[token])]
    if present:
        events.message(
            f"recipe.add_tokens: {', '.join(map(repr, present))} not added, because the tokenizer "
            "already has these texts as single tokens.",
            level="warn",
        )
    fresh = [token for token in tokens if token not in present]
    if not fresh:
        return NewTokens(rows_before=before, rows=before)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in fresh])
    ids = tuple(tokenizer.convert_tokens_to_ids(fresh))
    new = NewTokens(ids=ids, rows_before=before, rows=max(before, *(row + 1 for row in ids)))
    if new.resized:
        model.resize_token_embeddings(new.rows, mean_resizing=False)
    existing = torch.arange(min(before, *ids))
    for matrix in Matrices.of(model).distinct:
        with torch.no_grad():
            for token, row in zip(fresh, ids, strict=True):
                start = mean_row(matrix.weight, pieces[token] or existing)
                matrix.weight[row] = start.to(matrix.weight.dtype)
    events.message(
        f"tokens added: {_named(fresh, ids)}. Each new row starts as the mean of the rows of the "
        f"old tokens that spelled the new token; {_vocabulary(new)}.",
        data={"tokens": list(fresh), "token_ids": list(ids), "vocabulary": new.rows},
    )
    return new


def _pieces(tokenizer: Untyped, token: str) -> list[int]:
    ids = tokenizer(token, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return [piece for piece in ids if piece != tokenizer.unk_token_id]


def _is_one(tokenizer: Untyped, token: str, pieces: Sequence[int]) -> bool:
    return token in tokenizer.get_vocab() or (
        len(pieces) == 1 and tokenizer.decode(list(pieces)) == token
    )


def _named(tokens: Sequence[str], ids: Sequence[int]) -> str:
    named = [f"{token!r} ({row})" for token, row in zip(tokens, ids, strict=True)]
    return ", ".join(named[:20]) + (", ..." if len(named) > 20 else "")


def _vocabulary(new: NewTokens) -> str:
    if not new.resized:
        return f"the model's {new.rows_before:,} rows are enough"
    return (
        f"the vocabulary grows from {new.rows_before:,} to {new.rows:,} rows. To load an adapter "
        f"on the original base model, call model.resize_token_embeddings({new.rows}) first"
    )
