"""Whether the labels are there, are the assistant's words, and teach when to stop.

Reads tokens and labels as the trainer gets them, and the data file itself: what lies between is
what is being checked.
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

from .check_context import Subject, Untyped
from .findings import Finding, Outcome, judged, not_applicable

SAMPLE = 256
"""Rows, evenly spaced over the data."""
TEXTS = 8
"""Examples whose labels are read as text, from the start of the file."""
FILE_ROWS = 64
"""Rows of the file among which an example's own is looked for, beside those that gave none."""
MOST_ROWS = 1024
"""That are read for it: half a second."""
ENOUGH = 0.7
"""Share of the assistant's text that must be found again: templates trim and rewrite."""
WRAPPING = 40
"""Characters that a template may put around an answer, such as an empty think block."""

_MEND = "Check the chat template and the rows; tunesmith reads labels by the template's own turns."


def check_labels(subject: Subject) -> Outcome:
    """`labels`: rows have some, equal to their tokens, and none is lost on the way to a batch."""
    rows = _sample(subject)
    tokens = sum(len(ids) for ids, _ in rows)
    counts = [_labelled(labels) for _, labels in rows]
    findings = []
    empty = sum(not count for count in counts)
    if empty:
        findings.append(
            _wrong(
                "labels",
                f"{empty} of {len(rows)} sampled rows have no label: nothing is learned from them "
                "(tolerance: 0).",
                "Check that rows have assistant turns or completions; "
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
            _wrong(
                "labels",
                f"{moved} of {sum(counts)} labels are not the token at their place (tolerance: "
                "0): the model would learn to say other words.",
                "Clear the worker's token cache, then start the job again; report it if it stays.",
                category=ErrorCategory.INFRASTRUCTURE,
            )
        )
    expected, found = _batch_labels(subject)
    if expected != found:
        findings.append(
            _wrong(
                "labels",
                f"the first batch carries {found} labels, its rows have {expected} (tolerance: 0).",
                "Set recipe.packing=false, and report this.",
                category=ErrorCategory.INFRASTRUCTURE,
                param="recipe.packing",
            )
        )
    return judged("labels", findings, f"{sum(counts) / max(1, tokens):.0%} of tokens labelled")


def check_answers(subject: Subject) -> Outcome:
    """`answers`: labels read as text are what the assistant says in the data file."""
    tokenizer, only = subject.base.tokenizer, subject.data_plan.assistant_only_loss
    texts = [
        text
        for labels in subject.training.dataset[:TEXTS]["labels"]
        if _plain(text := tokenizer.decode(_kept(labels), skip_special_tokens=True))
    ]
    if not texts:
        return not_applicable("answers", "the labels are special tokens only")
    scores, any_said = [0.0] * len(texts), False
    for number, row in enumerate(islice(_file_rows(subject), _rows_to_read(subject))):
        if number >= FILE_ROWS and min(scores) >= ENOUGH:
            break
        said = _said(row, has_template=tokenizer.chat_template is not None)
        if said.parts:
            any_said = True
            scores = [
                max(score, _score(text, said, only))
                for score, text in zip(scores, texts, strict=True)
            ]
    if not any_said:
        return not_applicable("answers", "the assistant's turns have no text")
    foreign = [text for text, score in zip(texts, scores, strict=True) if score < ENOUGH]
    findings = []
    if 2 * len(foreign) > len(texts):
        if _passed_over(subject) > MOST_ROWS - FILE_ROWS:
            why = f"{_passed_over(subject):,} rows of the file gave no example"
            return not_applicable("answers", f"{why}: which row is whose was not looked for")
        findings.append(
            _wrong(
                "answers",
                f"the labels of {len(foreign)} of the first {len(texts)} rows are not what the "
                f"assistant says there (at least {ENOUGH:.0%} of its text must be): the first is "
                f"{foreign[0][:80]!r}.",
                "The tokenizer's chat template does not fit the data. " + _MEND,
                param="training_file",
            )
        )
    least = min(scores)
    return judged("answers", findings, f"at least {least:.0%} of the assistant's text in labels")


def check_end_token(subject: Subject) -> Outcome:
    """`end_token`: where rows end in the token that ends generation, it is a label."""
    ends = _end_tokens(subject)
    masked = learned = 0
    for ids, labels in _sample(subject):
        last = max((place for place, one in enumerate(labels) if one != IGNORED), default=None)
        if last is None:
            continue
        if any(one in ends for one in labels):
            learned += 1
        elif any(one in ends for one in ids[last + 1 :]):
            masked += 1
    if not masked and not learned:
        return not_applicable("end_token", "no row ends in the model's end token")
    findings = []
    if masked and not learned:
        names = ", ".join(repr(n) for n in subject.base.tokenizer.convert_ids_to_tokens([*ends]))
        findings.append(
            _wrong(
                "end_token",
                f"{masked} rows end in {names}, and in none of them is it a label (at least one "
                "must be): the model would never stop.",
                "Let the template's assistant turn include its end token (inside "
                "{% generation %} where it has such marks), and pad with another token.",
                param="training_file",
            )
        )
    return judged("end_token", findings, f"a label in {learned} of {learned + masked} rows")


def _wrong(
    check: str,
    message: str,
    hint: str,
    *,
    level: Untyped = "error",
    category: ErrorCategory = ErrorCategory.DATA,
    param: str | None = None,
) -> Finding:
    return Finding(check, message, hint, level=level, param=param, category=category)


def _sample(subject: Subject) -> list[tuple[list[int], list[int]]]:
    dataset = subject.training.dataset
    step = max(1, len(dataset) // SAMPLE)
    rows = dataset[list(range(0, len(dataset), step))[:SAMPLE]]
    return list(zip(rows["input_ids"], rows["labels"], strict=True))


def _labelled(labels: list[int]) -> int:
    """The first token has nothing that it could be predicted from."""
    return sum(label != IGNORED for label in labels[1:])


def _batch_labels(subject: Subject) -> tuple[int, int]:
    """Labels in the rows of one step, and in its micro-batches."""
    trainer = subject.trainer
    count = min(subject.train_plan.rows_per_step, len(trainer.train_dataset))
    examples = [trainer.train_dataset[index] for index in range(count)]
    expected = 0
    for one in examples:
        start = 0
        for length in one.get("seq_lengths") or [len(one["input_ids"])]:
            expected += _labelled(one["labels"][start : start + length])
            start += length
    step = trainer.data_collator(examples)
    batches = trainer.micro_batches(step, subject.layouts.chosen)
    return expected, sum(int((b["labels"][:, 1:] != IGNORED).sum()) for b in batches)


def _end_tokens(subject: Subject) -> set[int]:
    config = getattr(subject.base.model, "generation_config", None)
    given = getattr(config, "eos_token_id", None)
    many = given if isinstance(given, list) else [given]
    return {int(one) for one in (*many, subject.base.tokenizer.eos_token_id) if one is not None}


def _file_rows(subject: Subject) -> Iterator[Row]:
    file = subject.training_file
    for chunk in read_chunks(file):
        yield from chunk_rows(chunk, file.name)


def _kept(labels: list[int]) -> list[int]:
    return [one for one in labels if one != IGNORED]


def _passed_over(subject: Subject) -> int:
    """Rows of the file that gave no example."""
    return subject.training.counts.rows - subject.training.counts.kept


def _rows_to_read(subject: Subject) -> int:
    """So many that the first examples' own are among them, whichever rows were dropped."""
    return min(MOST_ROWS, FILE_ROWS + _passed_over(subject))


@dataclass(frozen=True)
class _Said:
    """What a row wants the model to say, without white space."""

    parts: tuple[str, ...]
    """Turn by turn; of a tool call the tool's name."""
    alone: bool
    """Whether that is all: tool calls and the like are put into the template's own words."""


def _said(row: Row, *, has_template: bool) -> _Said:
    if row.messages is None or not has_template:
        text = _plain(row.text or "")
        return _Said((text,) if text else (), alone=True)
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
    return _Said(plain, alone=not any(turn.extra for turn in turns))


def _plain(text: str) -> str:
    """Without white space, nor thoughts: templates drop them from earlier turns."""
    return "".join(re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).split())


def _score(labels: str, said: _Said, assistant_only: bool) -> float:
    """0..1: how much of some part is in the labels; and, when only answers carry loss, how much
    of the labels is in the parts. By groups of three characters, in any language."""
    text = _plain(labels)
    groups = _groups(text)
    found = max(_overlap(text, groups, part) for part in said.parts)
    if not assistant_only or not said.alone:
        return found
    strange = groups.total() - (groups & _groups("".join(said.parts))).total()
    return min(found, 1.0 - max(0, strange - WRAPPING) / groups.total())


def _overlap(text: str, groups: Counter[str], part: str) -> float:
    if part in text or text in part:  # either may be shorter than a group
        return 1.0
    theirs = _groups(part)
    return (theirs & groups).total() / min(theirs.total(), groups.total())


def _groups(text: str) -> Counter[str]:
    size = min(3, len(text))
    return Counter(text[i : i + size] for i in range(len(text) - size + 1)) if text else Counter()
