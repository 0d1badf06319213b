"""Rows as token ids and labels: what is too long or has nothing to learn is counted.

Labels are -100 where no loss is taken. Knows nothing of files, batches or data sets, and imports
neither torch nor datasets: processes beside the trainer do this too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import DataError, RunError
from tunesmith_worker.rundir.plan import DataPlan

from .chat import Rendered, RenderedRow, Span, Tokenizer, render
from .formats import Row

IGNORED = -100
"""The label that carries no loss."""
SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32()))])

Batch = Any  # Any: pyarrow.RecordBatch of SCHEMA, untyped


@dataclass(kw_only=True)
class Counts:
    rows: int = 0
    kept: int = 0
    """Rows with at least one example."""
    dropped_too_long: int = 0
    """Rows of which no example fits."""
    dropped_untrainable: int = 0
    """Rows without a token that carries loss."""
    truncated: int = 0
    """Examples cut to the longest allowed length."""
    examples: int = 0
    """More than `kept` when the chat template rewrites earlier turns."""
    examples_too_long: int = 0
    turns_left_out: int = 0
    """Assistant turns whose place in the template's text cannot be proven."""
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    """Tokens of the longest example that was kept."""
    endless: int = 0
    """Examples whose last trained token is not a special one: they do not teach to stop."""

    def add(self, other: Counts) -> None:
        """Take in the counts of further rows."""
        longest = max(self.longest, other.longest)
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.longest = longest

    def as_data(self) -> dict[str, Any]:  # Any: JSON; all are integers
        return asdict(self)

    def summary(self, name: str) -> str:
        return (
            f"{name}: {self.rows} rows gave {self.examples} examples with {self.tokens} tokens, "
            f"{self.trained_tokens} of them trained; the longest has {self.longest}"
        )

    def losses(self, name: str, max_seq_length: int) -> Iterator[str]:
        """A sentence for each thing that is not as the user may think."""
        if self.dropped_too_long:
            yield (
                f"{name}: {self.dropped_too_long} of {self.rows} rows dropped, longer than "
                f"max_seq_length={max_seq_length}"
            )
        if self.examples_too_long > self.dropped_too_long:
            yield (
                f"{name}: {self.examples_too_long} examples dropped, longer than "
                f"max_seq_length={max_seq_length}; some of their rows gave others that fit"
            )
        if self.truncated:
            yield f"{name}: {self.truncated} examples cut to max_seq_length={max_seq_length}"
        if self.dropped_untrainable:
            yield f"{name}: {self.dropped_untrainable} rows dropped, no token to train on"
        if self.turns_left_out:
            yield (
                f"{name}: {self.turns_left_out} assistant turns not trained, as the chat template "
                "does not show where they stand"
            )
        if self.endless:
            yield (
                f"{name}: {self.endless} examples do not end in a special token: the model may "
                "not learn to stop"
            )


def tokenize(
    rows: Sequence[Row], tokenizer: Tokenizer, plan: DataPlan, *, name: str, vocabulary: int
) -> tuple[Batch, Counts]:
    """The rows' examples, in order. What a row gives does not depend on the rows beside it.

    `name` is the file's, for messages; `vocabulary` the number of the model's embeddings. Raises
    RunError."""
    counts = Counts(rows=len(rows))
    examples = list(_examples(rows, tokenizer, plan, name, counts))
    columns = [[ids for ids, _ in examples], [labels for _, labels in examples]]
    check_vocabulary(columns[0], vocabulary)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA), counts


Example = tuple[list[int], list[int]]
"""Token ids and labels."""


def _examples(
    rows: Sequence[Row], tokenizer: Tokenizer, plan: DataPlan, name: str, counts: Counts
) -> Iterator[Example]:
    rendered = [render(tokenizer, row, assistant_only=plan.assistant_only_loss) for row in rows]
    # prompt/completion rows may be text here and messages there: each kind is encoded its own way.
    encoded = {
        is_chat: _encode(
            [example for row in rendered if row.is_chat == is_chat for example in row.examples],
            tokenizer,
            is_chat=is_chat,
        )
        for is_chat in (True, False)
    }
    for row in rendered:
        counts.turns_left_out += row.turns_left_out
        too_long = counts.examples_too_long
        own = [
            example
            for ids, labels in islice(encoded[row.is_chat], len(row.examples))
            if (example := _fit(ids, labels, row, plan, name, counts)) is not None
        ]
        if own:
            counts.kept += 1
        elif counts.examples_too_long > too_long:
            counts.dropped_too_long += 1
        else:
            counts.dropped_untrainable += 1
        for ids, labels in own:
            _count(ids, labels, tokenizer, counts)
        yield from own


def _encode(
    examples: Sequence[Rendered], tokenizer: Tokenizer, *, is_chat: bool
) -> Iterator[Example]:
    if not examples:
        return
    encoded = tokenizer(
        [example.text for example in examples],
        add_special_tokens=not is_chat,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,  # no word about the model's length: rows are measured below
    )
    eos = tokenizer.eos_token_id
    for example, ids, offsets in zip(
        examples, encoded["input_ids"], encoded["offset_mapping"], strict=True
    ):
        labels = _labels(ids, offsets, example.spans)
        if not is_chat and eos is not None:
            if ids[-1:] != [eos]:
                ids = [*ids, eos]
                labels = [*labels, eos]
            labels[-1] = eos  # a tokenizer that adds eos itself gives it no characters
        yield ids, labels


def _labels(ids: Sequence[int], offsets: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Label the tokens that overlap a span. One across a span's start is the model's to say, as in
    TRL: the prompt alone would be tokenised without it."""
    labels = [IGNORED] * len(ids)
    for start, end in spans:
        first = bisect_right(offsets, start, key=itemgetter(1))
        after = bisect_left(offsets, end, key=itemgetter(0))
        labels[first:after] = ids[first:after]
    if labels:
        labels[0] = IGNORED  # nothing precedes it, so nothing predicts it
    return labels


def _fit(
    ids: list[int],
    labels: list[int],
    row: RenderedRow,
    plan: DataPlan,
    name: str,
    counts: Counts,
) -> Example | None:
    limit = plan.max_seq_length
    if len(ids) > limit:
        if plan.overlong == "error":
            raise DataError(
                f"{name}, row {row.number}: {len(ids)} tokens are more than "
                f"max_seq_length={limit}.",
                code=ErrorCode.ROW_TOO_LONG,
                hint="Shorten the row, raise recipe.max_seq_length, or set recipe.overlong to "
                "'drop' or 'truncate'.",
            )
        if plan.overlong == "drop":
            counts.examples_too_long += 1
            return None
        counts.truncated += 1
        ids, labels = ids[:limit], labels[:limit]
    return (ids, labels) if any(label != IGNORED for label in labels) else None


def _count(ids: list[int], labels: list[int], tokenizer: Tokenizer, counts: Counts) -> None:
    trained = [label for label in labels if label != IGNORED]
    counts.examples += 1
    counts.tokens += len(ids)
    counts.trained_tokens += len(trained)
    counts.longest = max(counts.longest, len(ids))
    counts.endless += trained[-1] not in tokenizer.added_tokens_decoder


def check_vocabulary(examples: Sequence[Sequence[int]], vocabulary: int) -> None:
    """Raises RunError where a token has no embedding."""
    highest = max((max(ids) for ids in examples), default=0)
    if highest >= vocabulary:
        raise RunError(
            ErrorCode.MODEL_NOT_USABLE,
            f"The tokenizer gives token id {highest}, but the model has only {vocabulary} "
            "embeddings: model and tokenizer do not belong together.",
            hint="Use the tokenizer that came with the model.",
        )


def nothing_left(counts: Counts, plan: DataPlan, name: str) -> DataError:
    if counts.dropped_too_long >= counts.rows:
        return DataError(
            f"{name}: all {counts.rows} rows are longer than max_seq_length="
            f"{plan.max_seq_length} and were dropped.",
            code=ErrorCode.NO_TRAINABLE_TOKENS,
            hint="Raise recipe.max_seq_length, or set recipe.overlong='truncate'.",
        )
    return DataError(
        f"{name}: none of the {counts.rows} rows has a token to train on "
        f"({counts.dropped_too_long} too long, {counts.dropped_untrainable} without one; "
        f"{counts.turns_left_out} assistant turns could not be found in the template's text).",
        code=ErrorCode.NO_TRAINABLE_TOKENS,
        hint="Check that rows have assistant turns or completions; "
        "recipe.assistant_only_loss=false trains every token.",
    )
