"""Checks that labels exist, are the assistant's words, and include the end token.

The checks compare labels with the data file, without using the code that made the labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tunesmith_schema import ErrorCategory
from tunesmith_worker.trainer.data.chunks import chunk_rows, read_chunks
from tunesmith_worker.trainer.data.formats import Row
from tunesmith_worker.trainer.data.tokens import IGNORED

from .check_context import SupervisedContext, Untyped
from .findings import Finding, Outcome, make_outcome, not_applicable

SAMPLE = 256
"""Number of rows to check, evenly spaced over the data."""
TEXTS = 8
"""Number of examples at the start of the data whose labels are compared as text."""
FILE_ROWS = 64
"""Number of rows to read at the start of the file, to find the rows of the first examples. If rows
of the file were dropped, up to that many more rows are read."""
MOST_ROWS = 1024
"""Maximum rows to read in the search for an example's row; reading them takes half a second."""
ENOUGH = 0.7
"""Minimum share of the assistant's text that the labels must contain. The share may be below 1,
because templates may trim and rewrite the text."""
WRAPPING = 40
"""Maximum characters that a template may add to an answer, such as an empty think block."""

_HINT = (
    "The tokenizer's chat template determines which tokens are labels. Check that the "
    "template supports the roles and turns of the rows."
)


def check_labels(context: SupervisedContext) -> Outcome:
    """Check `labels`: rows have labels, labels equal tokens, and batches keep all labels."""
    rows = _sample(context)
    tokens = sum(len(ids) for ids, _ in rows)
    counts = [_count_labels(labels) for _, labels in rows]
    findings = []
    empty = sum(not count for count in counts)
    if empty:
        findings.append(
            _finding(
                "labels",
                f"{empty} of {len(rows)} sampled rows have no label: the model learns nothing from "
                "them (tolerance: 0).",
                "Check that rows have assistant turns or completions. "
                "recipe.assistant_only_loss=false trains every token.",
                level="error" if empty == len(rows) else "warn",
                param="recipe.assistant_only_loss",
            )
        )
    moved = sum(
        label not in (IGNORED, token)
        for ids, labels in rows
        for token, label in zip(ids, labels, strict=True)
    )
    if moved:
        findings.append(
            _finding(
                "labels",
                f"{moved} of {sum(counts)} labels differ from the token at their position "
                "(tolerance: 0): the model would learn wrong words.",
                "Clear the worker's token cache and start the job again. If the fault remains, "
                "report it.",
                category=ErrorCategory.INFRASTRUCTURE,
            )
        )
    expected, actual = _count_batch_labels(context)
    if expected != actual:
        findings.append(
            _finding(
                "labels",
                f"the first batch has {actual} labels, but its rows have {expected} labels "
                "(tolerance: 0).",
                "Set recipe.packing=false, and report the fault.",
                category=ErrorCategory.INFRASTRUCTURE,
                param="recipe.packing",
            )
        )
    return make_outcome(
        "labels", findings, f"{sum(counts) / max(1, tokens):.0%} of tokens labelled"
    )


def check_answers(context: SupervisedContext) -> Outcome:
    """Check `answers`: decoded labels are the assistant's words in the data file."""
    tokenizer, only = context.base.tokenizer, context.data_plan.assistant_only_loss
    examples = [
        labels
        for labels in context.training.dataset[:TEXTS]["labels"]
        if only or not _is_cut(context, labels)
    ]
    texts = [
        text
        for labels in examples
        if _plain(text := tokenizer.decode(_without_ignored(labels), skip_special_tokens=True))
    ]
    if not examples:
        cut = f"the first examples are cut to max_seq_length={context.data_plan.max_seq_length}"
        return not_applicable("answers", f"{cut}, which may remove any part of an answer")
    if not texts:
        return not_applicable("answers", "the labels are special tokens only")
    scores, any_text = [0.0] * len(texts), False
    for number, row in enumerate(islice(_file_rows(context), _rows_to_read(context))):
        if number >= FILE_ROWS and min(scores) >= ENOUGH:
            break
        answer = _answer_of(row, has_template=tokenizer.chat_template is not None)
        if answer.parts:
            any_text = True
            scores = [
                max(score, _score(text, answer, only))
                for score, text in zip(scores, texts, strict=True)
            ]
    if not any_text:
        return not_applicable("answers", "the assistant's turns have no text")
    foreign = [text for text, score in zip(texts, scores, strict=True) if score < ENOUGH]
    findings = []
    if 2 * len(foreign) > len(texts):
        if _dropped_rows(context) > MOST_ROWS - FILE_ROWS:
            why = f"{_dropped_rows(context):,} rows of the file were dropped"
            return not_applicable("answers", f"{why}: too many to find each example's row")
        findings.append(
            _finding(
                "answers",
                f"in {len(foreign)} of the first {len(texts)} rows, the labels match less than "
                f"{ENOUGH:.0%} of the assistant's words. The first wrong labels are "
                f"{foreign[0][:80]!r}.",
                _HINT,
                param="training_file",
            )
        )
    least = min(scores)
    return make_outcome(
        "answers", findings, f"labels contain at least {least:.0%} of the assistant's text"
    )


def check_end_token(context: SupervisedContext) -> Outcome:
    """Check `end_token`: if rows end in an end-of-generation token, this token must be a label."""
    ends = _end_tokens(context)
    masked = learned = 0
    for ids, labels in _sample(context):
        last = max((i for i, label in enumerate(labels) if label != IGNORED), default=None)
        if last is None:
            continue
        if any(label in ends for label in labels):
            learned += 1
        elif any(id_ in ends for id_ in ids[last + 1 :]):
            masked += 1
    if not masked and not learned:
        return not_applicable("end_token", "no row ends in the model's end token")
    findings = []
    if masked and not learned:
        names = ", ".join(repr(n) for n in context.base.tokenizer.convert_ids_to_tokens([*ends]))
        findings.append(
            _finding(
                "end_token",
                f"{masked} rows end in {names}, but this token is never a label: the model would "
                "not learn to stop.",
                "Include the end token in the template's assistant turn; if the template uses "
                "{% generation %}, inside that block. Use another token for padding.",
                param="training_file",
            )
        )
    return make_outcome("end_token", findings, f"a label in {learned} of {learned + masked} rows")


def _finding(
    check: str,
    message: str,
    hint: str,
    *,
    level: Untyped = "error",
    category: ErrorCategory = ErrorCategory.DATA,
    param: str | None = None,
) -> Finding:
    return Finding(check, message, hint, level=level, param=param, category=category)


def _sample(context: SupervisedContext) -> list[tuple[list[int], list[int]]]:
    dataset = context.training.dataset
    step = max(1, len(dataset) // SAMPLE)
    rows = dataset[list(range(0, len(dataset), step))[:SAMPLE]]
    return list(zip(rows["input_ids"], rows["labels"], strict=True))


def _count_labels(labels: list[int]) -> int:
    """Count the labels after the first token of each row, because no token predicts the first
    token."""
    return sum(label != IGNORED for label in labels[1:])


def _count_batch_labels(context: SupervisedContext) -> tuple[int, int]:
    """Return the number of labels in the rows of one step, and the number of labels in that step's
    micro-batches. The two numbers should be equal."""
    trainer = context.trainer
    count = min(context.train_plan.rows_per_step, len(trainer.train_dataset))
    examples = [trainer.train_dataset[index] for index in range(count)]
    expected = 0
    for example in examples:
        start = 0
        for length in example.get("seq_lengths") or [len(example["input_ids"])]:
            expected += _count_labels(example["labels"][start : start + length])
            start += length
    step = trainer.data_collator(examples)
    batches = trainer.micro_batches(step, context.layouts.chosen)
    return expected, sum(int((b["labels"][:, 1:] != IGNORED).sum()) for b in batches)


def _end_tokens(context: SupervisedContext) -> set[int]:
    config = getattr(context.base.model, "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    ids = eos if isinstance(eos, list) else [eos]
    return {int(id_) for id_ in (*ids, context.base.tokenizer.eos_token_id) if id_ is not None}


def _file_rows(context: SupervisedContext) -> Iterator[Row]:
    file = context.training_file
    for chunk in read_chunks(file):
        yield from chunk_rows(chunk, file.name)


def _is_cut(context: SupervisedContext, labels: list[int]) -> bool:
    """Return True if the example may have been cut to max_seq_length."""
    full = len(labels) == context.data_plan.max_seq_length
    return full and context.training.counts.truncated > 0


def _without_ignored(labels: list[int]) -> list[int]:
    return [label for label in labels if label != IGNORED]


def _dropped_rows(context: SupervisedContext) -> int:
    return context.training.counts.rows - context.training.counts.kept


def _rows_to_read(context: SupervisedContext) -> int:
    return min(MOST_ROWS, FILE_ROWS + _dropped_rows(context))


@dataclass(frozen=True)
class _Answer:
    parts: tuple[str, ...]
    """Text of each turn; for a tool call, the tool's name."""
    is_complete: bool
    """False if the template adds words to the answer, as templates do for tool calls."""


def _answer_of(row: Row, *, has_template: bool) -> _Answer:
    if row.messages is None or not has_template:
        text = _plain(row.text or "")
        return _Answer((text,) if text else (), is_complete=True)
    turns = [m for m in row.messages if m.role == "assistant" and m.trained]
    parts = [
        part
        for turn in turns
        for part in (
            turn.content or "",
            *(str(call["function"].get("name", "")) for call in turn.extra.get("tool_calls", ())),
        )
    ]
    plain = tuple(text for part in parts if (text := _plain(part)))
    return _Answer(plain, is_complete=not any(turn.extra for turn in turns))


def _plain(text: str) -> str:
    """Remove white space and think blocks from a text, because templates drop both from earlier
    turns."""
    return "".join(re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).split())


def _score(labels: str, answer: _Answer, assistant_only: bool) -> float:
    """Return the share, 0 to 1, of the assistant's text that the labels contain.

    The function computes the share for each turn of the assistant, and returns the highest share.
    If only answers are trained, labels on text outside the answers lower the share. Texts are
    compared by groups of three characters, which works in any language.
    """
    text = _plain(labels)
    groups = _groups(text)
    overlap = max(_overlap(text, groups, part) for part in answer.parts)
    if not assistant_only or not answer.is_complete:
        return overlap
    other = groups.total() - (groups & _groups("".join(answer.parts))).total()
    return min(overlap, 1.0 - max(0, other - WRAPPING) / groups.total())


def _overlap(text: str, groups: Counter[str], part: str) -> float:
    if part in text or text in part:  # a text may have fewer than three characters
        return 1.0
    theirs = _groups(part)
    return (theirs & groups).total() / min(theirs.total(), groups.total())


def _groups(text: str) -> Counter[str]:
    size = min(3, len(text))
    return Counter(text[i : i + size] for i in range(len(text) - size + 1)) if text else Counter()
