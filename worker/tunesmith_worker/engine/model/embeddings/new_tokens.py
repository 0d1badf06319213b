"""`recipe.add_tokens`: into the tokenizer, and rows for them into the model.

Rows start from the mean of what the tokenizer cut the token into before, in the embedding and in
the head: a mean of existing rows never takes all probability from the old tokens (Hewitt 2021,
https://nlp.stanford.edu/~johnhew/vocab-expansion.html), and the pieces say what the token is about.
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
    ids: tuple[int, ...] = ()
    """Of the tokens that were not there before."""
    rows_before: int
    """Rows of the base model's embedding."""
    rows: int
    """As many as that, or what the new tokens need."""

    @property
    def resized(self) -> bool:
        return self.rows > self.rows_before


def add_tokens(
    model: Untyped, tokenizer: Untyped, tokens: Sequence[str], events: EventLog
) -> NewTokens:
    """Change `tokenizer` and `model` in place. A vocabulary that is padded beyond the tokenizer is
    filled before it grows."""
    before = int(model.get_input_embeddings().num_embeddings)
    pieces = {token: _cut(tokenizer, token) for token in tokens}
    present = [token for token in tokens if _is_one(tokenizer, token, pieces[token])]
    if present:
        events.message(
            f"recipe.add_tokens: {', '.join(map(repr, present))} can be said with one token "
            "already: nothing is added for that.",
            level="warn",
        )
    fresh = [token for token in tokens if token not in present]
    if not fresh:
        return NewTokens(rows_before=before, rows=before)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in fresh])
    ids = tuple(tokenizer.convert_tokens_to_ids(fresh))
    new = NewTokens(ids=ids, rows_before=before, rows=max(before, *(one + 1 for one in ids)))
    if new.resized:
        model.resize_token_embeddings(new.rows, mean_resizing=False)
    every = torch.arange(min(before, *ids))
    for matrix in Matrices.of(model).distinct:
        with torch.no_grad():
            for token, row in zip(fresh, ids, strict=True):
                start = mean_row(matrix.weight, pieces[token] or every)
                matrix.weight[row] = start.to(matrix.weight.dtype)
    events.message(
        f"tokens added: {_named(fresh, ids)}. Their rows start from the mean of the pieces that "
        f"each was cut into before; {_vocabulary(new)}.",
        data={"tokens": list(fresh), "token_ids": list(ids), "vocabulary": new.rows},
    )
    return new


def _cut(tokenizer: Untyped, token: str) -> list[int]:
    """What the tokenizer makes of it, without pieces that stand for something unknown."""
    ids = tokenizer(token, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return [one for one in ids if one != tokenizer.unk_token_id]


def _is_one(tokenizer: Untyped, token: str, pieces: Sequence[int]) -> bool:
    return token in tokenizer.get_vocab() or (
        len(pieces) == 1 and tokenizer.decode(list(pieces)) == token
    )


def _named(tokens: Sequence[str], ids: Sequence[int]) -> str:
    named = [f"{token!r} ({row})" for token, row in zip(tokens, ids, strict=True)]
    return ", ".join(named[:20]) + (", ..." if len(named) > 20 else "")


def _vocabulary(new: NewTokens) -> str:
    if not new.resized:
        return f"the model's {new.rows_before:,} rows have room for them"
    return (
        f"the vocabulary grows from {new.rows_before:,} to {new.rows:,} rows. To load an adapter "
        f"on the original base model, call model.resize_token_embeddings({new.rows}) first"
    )
