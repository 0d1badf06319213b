"""Rows as token ids and labels, with counts of dropped and cut rows.

This module imports neither torch nor datasets, so that the tokenising helper processes start fast.
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
"""Label of a token without loss."""
ROW = "row"
"""Column with the number of the row that an example came from, starting at 1."""
SCHEMA = pa.schema(
    [("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), (ROW, pa.int32())]
)

Batch = Any  # Any: pyarrow.RecordBatch of SCHEMA, untyped


@dataclass(kw_only=True)
class Counts:
    """Counts of a file's rows, examples and tokens: kept, dropped and cut."""

    rows: int = 0
    kept: int = 0
    """Rows with at least one example."""
    dropped_too_long: int = 0
    """Rows without an example that fits into max_seq_length."""
    dropped_untrainable: int = 0
    """Rows in which no token carries loss, even if the row is not cut."""
    dropped_truncated: int = 0
    """Rows whose examples were cut to max_seq_length, and then had no token that carries loss."""
    truncated: int = 0
    """Examples cut to the longest allowed length."""
    answers_cut: int = 0
    """Examples that were cut inside an answer, so the model does not learn the end of this
    answer."""
    answers_lost: int = 0
    """Cut examples that were dropped because the cut removed all tokens that carry loss."""
    examples: int = 0
    """Number of examples, which exceeds `kept` if the chat template rewrites earlier turns."""
    examples_too_long: int = 0
    skipped_turns: int = 0
    """Assistant turns that are not trained, because their span is unknown."""
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    """Number of tokens in the longest example."""
    without_end_token: int = 0
    """Uncut examples whose last trained token is not a special token. Examples without a special
    token at the end cannot teach the model to stop."""

    def add(self, other: Counts) -> None:
        """Add the counts of further rows."""
        longest = max(self.longest, other.longest)
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.longest = longest

    def as_data(self) -> dict[str, Any]:  # Any: JSON; all values are integers
        return asdict(self)

    def summary(self, name: str) -> str:
        return (
            f"{name}: {self.examples} examples from {self.rows} rows, {self.tokens} tokens, "
            f"{self.trained_tokens} of them with loss; longest example {self.longest} tokens"
        )

    def warnings(self, name: str, max_seq_length: int) -> Iterator[str]:
        """Yield a warning for each kind of dropped or changed data."""
        if self.dropped_too_long:
            yield (
                f"{name}: {self.dropped_too_long} of {self.rows} rows dropped, longer than "
                f"max_seq_length={max_seq_length}"
            )
        if self.examples_too_long > self.dropped_too_long:
            yield (
                f"{name}: {self.examples_too_long} examples dropped, longer than "
                f"max_seq_length={max_seq_length}; other examples of some of these rows fit"
            )
        if self.truncated:
            yield f"{name}: {self.truncated} examples cut to max_seq_length={max_seq_length}"
        if self.answers_cut:
            yield (
                f"{name}: in {self.answers_cut} examples, the cut to max_seq_length="
                f"{max_seq_length} removes the end of an answer: the model does not learn to end "
                "these answers. Raise recipe.max_seq_length, or set recipe.overlong='drop'"
            )
        if self.dropped_truncated:
            yield (
                f"{name}: {self.dropped_truncated} rows dropped, because the cut to max_seq_length="
                f"{max_seq_length} removes the whole answer. Raise recipe.max_seq_length, or "
                "shorten the prompts"
            )
        if self.dropped_untrainable:
            yield f"{name}: {self.dropped_untrainable} rows dropped, no token to train on"
        if self.skipped_turns:
            yield (
                f"{name}: {self.skipped_turns} assistant turns not trained: their position in the "
                "chat template's output is ambiguous"
            )
        if self.without_end_token:
            yield (
                f"{name}: {self.without_end_token} examples do not end with a special token, so "
                "the model may not learn to stop"
            )


def tokenize(
    rows: Sequence[Row], tokenizer: Tokenizer, plan: DataPlan, *, name: str, vocabulary: int
) -> tuple[Batch, Counts]:
    """Return the examples of the rows in order. Each row's examples depend on that row only.

    `name`: file name for messages. `vocabulary`: number of the model's embedding rows. Raises
    RunError for a row or a token that cannot be used.
    """
    counts = Counts(rows=len(rows))
    examples = list(_examples(rows, tokenizer, plan, name, counts))
    check_vocabulary([ids for ids, _, _ in examples], vocabulary)
    columns = [[example[place] for example in examples] for place in range(len(SCHEMA))]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA), counts


Example = tuple[list[int], list[int]]
"""Token ids and labels."""


def _examples(
    rows: Sequence[Row], tokenizer: Tokenizer, plan: DataPlan, name: str, counts: Counts
) -> Iterator[tuple[list[int], list[int], int]]:
    rendered = [render(tokenizer, row, assistant_only=plan.assistant_only_loss) for row in rows]
    # Plain text and messages are encoded differently; a file may mix them.
    encoded = {
        is_chat: _encode(
            [example for row in rendered if row.is_chat == is_chat for example in row.examples],
            tokenizer,
            is_chat=is_chat,
        )
        for is_chat in (True, False)
    }
    for row in rendered:
        counts.skipped_turns += row.skipped_turns
        too_long, lost = counts.examples_too_long, counts.answers_lost
        kept = False
        for ids, labels in islice(encoded[row.is_chat], len(row.examples)):
            cut = counts.answers_cut
            example = _fit(ids, labels, row, plan, name, counts)
            if example is not None:
                kept = True
                _count(*example, tokenizer, counts, is_cut=counts.answers_cut > cut)
                yield *example, row.number
        if kept:
            counts.kept += 1
        elif counts.examples_too_long > too_long:
            counts.dropped_too_long += 1
        elif counts.answers_lost > lost:
            counts.dropped_truncated += 1
        else:
            counts.dropped_untrainable += 1


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
        verbose=False,  # no warning about long texts: _fit checks the length
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
            labels[-1] = eos  # an eos from the tokenizer has no characters, hence no label
        yield ids, labels


def _labels(ids: Sequence[int], offsets: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Return labels for the tokens that overlap a span.

    As in TRL, a token that crosses the start of a span carries loss."""
    labels = [IGNORED] * len(ids)
    for start, end in spans:
        first = bisect_right(offsets, start, key=itemgetter(1))
        after = bisect_left(offsets, end, key=itemgetter(0))
        labels[first:after] = ids[first:after]
    if labels:
        labels[0] = IGNORED  # no token predicts the first token
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
                f"{name}, row {row.number} has {len(ids)} tokens, more than "
                f"max_seq_length={limit}.",
                code=ErrorCode.ROW_TOO_LONG,
                hint=f"{_longer_rows_hint(plan)}, or set recipe.overlong to 'drop' or 'truncate'.",
            )
        if plan.overlong == "drop":
            counts.examples_too_long += 1
            return None
        counts.truncated += 1
        removed = _has_loss(labels[limit:])
        ids, labels = ids[:limit], labels[:limit]
        counts.answers_cut += removed and _has_loss(labels)
        counts.answers_lost += removed and not _has_loss(labels)
    return (ids, labels) if _has_loss(labels) else None


def _has_loss(labels: Sequence[int]) -> bool:
    return any(label != IGNORED for label in labels)


def _longer_rows_hint(plan: DataPlan) -> str:
    """Return the remedy for long rows. The text suggests a higher max_seq_length only if the
    model's context allows one."""
    remedy = "Shorten or split the rows"
    return f"{remedy}, raise recipe.max_seq_length" if plan.fits_longer_rows else remedy


def _count(
    ids: list[int], labels: list[int], tokenizer: Tokenizer, counts: Counts, *, is_cut: bool
) -> None:
    trained = [label for label in labels if label != IGNORED]
    counts.examples += 1
    counts.tokens += len(ids)
    counts.trained_tokens += len(trained)
    counts.longest = max(counts.longest, len(ids))
    counts.without_end_token += not is_cut and trained[-1] not in tokenizer.added_tokens_decoder


def check_vocabulary(examples: Sequence[Sequence[int]], vocabulary: int) -> None:
    """Raise RunError if a token has no embedding."""
    highest = max((max(ids) for ids in examples), default=0)
    if highest >= vocabulary:
        raise RunError(
            ErrorCode.MODEL_NOT_USABLE,
            f"The tokenizer produces token id {highest}, but the model has only {vocabulary} "
            "embeddings: model and tokenizer do not belong together.",
            hint="Use the tokenizer that came with the model.",
        )


def no_examples_error(counts: Counts, plan: DataPlan, name: str) -> DataError:
    if counts.dropped_too_long >= counts.rows:
        return DataError(
            f"{name}: all {counts.rows} rows are longer than max_seq_length="
            f"{plan.max_seq_length} and were dropped.",
            code=ErrorCode.NO_TRAINABLE_TOKENS,
            hint=f"{_longer_rows_hint(plan)}, or set recipe.overlong='truncate'.",
        )
    if counts.dropped_truncated:
        return DataError(
            f"{name}: none of the {counts.rows} rows has a token to train on: in "
            f"{counts.dropped_truncated} rows, the cut to max_seq_length={plan.max_seq_length} "
            "removes the whole answer.",
            code=ErrorCode.NO_TRAINABLE_TOKENS,
            hint=f"{_longer_rows_hint(plan)}.",
        )
    return DataError(
        f"{name}: none of the {counts.rows} rows has a token to train on. "
        f"{counts.dropped_too_long} rows are too long. {counts.dropped_untrainable} rows have no "
        f"token that carries loss; {counts.skipped_turns} assistant turns could not be "
        "found in the output of the chat template.",
        code=ErrorCode.NO_TRAINABLE_TOKENS,
        hint="Check that rows have assistant turns or completions; "
        "recipe.assistant_only_loss=false trains every token.",
    )
