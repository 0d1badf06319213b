"""Prompts of a reinforcement run: token ids, the fields of each row, and counts of dropped prompts.

A prompt is never cut, because the model would learn from answers to an incomplete question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tunesmith_schema import ErrorCategory, ErrorCode, Grader, RunSpec
from tunesmith_worker.engine.model.base_model import Base
from tunesmith_worker.rundir.errors import DataError, RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.trainer.rewards import missing_fields

from .chat import Tokenizer, render_prompt
from .examples import check_vocabulary
from .held_out import held_out_message, held_out_rows
from .prompt_rows import PromptRow, read_prompt_rows
from .rows import empty_file_error

_RAISE = "raise recipe.max_seq_length"
_BATCH_PROMPTS = 1000
"""Number of prompts in one tokenizer call."""


@dataclass(kw_only=True)
class PromptCounts:
    """Number of prompts and tokens of a file."""

    rows: int = 0
    kept: int = 0
    dropped_too_long: int = 0
    tokens: int = 0
    longest: int = 0
    """Number of tokens in the longest prompt."""
    without_template: int = 0
    """Number of plain-text prompts, counted only if the model has a chat template."""

    def as_data(self) -> dict[str, Any]:  # Any: JSON; all values are integers
        return asdict(self)

    def summary(self, name: str) -> str:
        return (
            f"{name}: {self.kept} prompts from {self.rows} rows, {self.tokens} tokens; longest "
            f"prompt {self.longest} tokens"
        )

    def warnings(self, name: str, limit: int | None) -> Iterator[str]:
        """Yield a warning for each kind of dropped or unusual prompts."""
        if self.dropped_too_long:
            yield (
                f"{name}: {self.dropped_too_long} of {self.rows} prompts dropped, longer than the "
                f"prompt limit of {limit} tokens (max_seq_length minus max_completion_length)"
            )
        if self.without_template:
            yield (
                f"{name}: {self.without_template} prompts are plain text and skip the model's chat "
                "template; use 'messages' or 'question' rows to apply the template"
            )


@dataclass(frozen=True, kw_only=True)
class Prompts:
    rows: Sequence[PromptRow]
    """Prompts of the training file, in file order."""
    validation: Sequence[PromptRow] | None
    """Prompts from the validation file, or prompts kept out of the training file; None without
    validation."""

    @property
    def longest(self) -> int:
        """Number of tokens in the longest prompt of both files."""
        return max(len(row.prompt_ids) for row in (*self.rows, *(self.validation or ())))


def read_prompts(
    run: RunDirectory,
    spec: RunSpec,
    base: Base,
    events: EventLog,
    *,
    max_prompt_tokens: int | None,
) -> Prompts:
    """Return the prompts of the run's data files. Prompts with more than `max_prompt_tokens` tokens
    are dropped or raise an error, depending on `recipe.overlong`.

    Raises DataError for an unusable row or file. Raises RunError if the tokenizer does not match
    the model, or if the grader reads a field that a row lacks.
    """

    def read(file: str) -> tuple[PromptRow, ...]:
        path, name = run.root / file, spec.display_name(file)
        rows, counts = prompt_rows(
            path,
            base.tokenizer,
            limit=max_prompt_tokens,
            refuse=spec.recipe.overlong == "error",
            remedy=_RAISE
            if spec.recipe.max_seq_length not in ("auto", base.context)
            else "use a model with a longer context",
            vocabulary=base.vocabulary,
            name=name,
        )
        events.message(counts.summary(name), data=counts.as_data())
        for warning in counts.warnings(name, max_prompt_tokens):
            events.message(warning, level="warn", data=counts.as_data())
        if spec.grader is not None:
            check_fields(spec.grader, rows, name)
        return rows

    rows = read(spec.training_file)
    if spec.validation_file:
        return Prompts(rows=rows, validation=read(spec.validation_file))
    share, name = spec.recipe.validation_split, spec.display_name(spec.training_file)
    if not share:
        return Prompts(rows=rows, validation=None)
    held_out = held_out_rows([row.number for row in rows], share, spec.seed, name)
    events.message(held_out_message(len(held_out), len(rows), share, name))
    return Prompts(
        rows=[row for row in rows if row.number not in held_out],
        validation=[row for row in rows if row.number in held_out],
    )


def prompt_rows(
    path: Path,
    tokenizer: Tokenizer,
    *,
    limit: int | None,
    refuse: bool,
    vocabulary: int,
    remedy: str = _RAISE,
    name: str | None = None,
) -> tuple[tuple[PromptRow, ...], PromptCounts]:
    """Return the file's prompts in order.

    `limit`: maximum tokens of a prompt. `refuse`: True to raise DataError for a longer prompt;
    False to drop the prompt. `remedy`: text for hints that says how to raise the limit.
    `vocabulary`: number of the model's embeddings. `name`: file name for messages."""
    name = name or path.name
    counts = PromptCounts()
    kept = []
    for row, by_template in _tokenized(path, name, tokenizer):
        counts.rows += 1
        tokens = len(row.prompt_ids)
        if tokens == 0:
            raise DataError(f"{name}, row {row.number}: the tokenizer returns no tokens.")
        if limit is not None and tokens > limit:
            if refuse:
                raise _too_long(name, row, limit, remedy)
            counts.dropped_too_long += 1
            continue
        counts.kept += 1
        counts.tokens += tokens
        counts.longest = max(counts.longest, tokens)
        counts.without_template += tokenizer.chat_template is not None and not by_template
        kept.append(row)
    if counts.rows == 0:
        raise empty_file_error(name)
    if not kept:
        raise _nothing_left(name, counts, limit, remedy)
    check_vocabulary([row.prompt_ids for row in kept], vocabulary)
    return tuple(kept), counts


def _tokenized(path: Path, name: str, tokenizer: Tokenizer) -> Iterator[tuple[PromptRow, bool]]:
    rows = read_prompt_rows(path, name)
    while batch := list(islice(rows, _BATCH_PROMPTS)):
        rendered = [render_prompt(tokenizer, prompt.row) for prompt in batch]
        encoded = _encode(rendered, tokenizer)
        for prompt, (text, by_template), ids in zip(batch, rendered, encoded, strict=True):
            number, ids = prompt.row.number, tuple(ids)
            yield PromptRow(number=number, prompt_ids=ids, item=prompt.item, text=text), by_template


def _encode(rendered: Sequence[tuple[str, bool]], tokenizer: Tokenizer) -> list[Sequence[int]]:
    """Return the token ids. Text from a template already contains special tokens; plain text gets
    the tokenizer's special tokens, except an end token."""
    encoded: list[Sequence[int]] = [()] * len(rendered)
    for is_chat in (True, False):
        places = [i for i, (_, by_template) in enumerate(rendered) if by_template == is_chat]
        if not places:
            continue
        ids = tokenizer(
            [rendered[i][0] for i in places],
            add_special_tokens=not is_chat,
            return_attention_mask=False,
            verbose=False,  # no warning about the model's length: the caller checks it
        )["input_ids"]
        for place, prompt_ids in zip(places, ids, strict=True):
            ends = not is_chat and prompt_ids[-1:] == [tokenizer.eos_token_id]
            encoded[place] = prompt_ids[:-1] if ends and len(prompt_ids) > 1 else prompt_ids
    return encoded


def _too_long(name: str, row: PromptRow, limit: int, remedy: str) -> DataError:
    return DataError(
        f"{name}, row {row.number} has {len(row.prompt_ids)} tokens, more than the prompt limit "
        f"of {limit} tokens (max_seq_length minus max_completion_length).",
        code=ErrorCode.ROW_TOO_LONG,
        hint=f"Shorten the prompt, lower recipe.grpo.max_completion_length, {remedy}, or set "
        "recipe.overlong to 'drop'.",
    )


def _nothing_left(name: str, counts: PromptCounts, limit: int | None, remedy: str) -> DataError:
    return DataError(
        f"{name}: all {counts.rows} prompts were dropped, longer than the prompt limit of "
        f"{limit} tokens (max_seq_length minus max_completion_length).",
        code=ErrorCode.ROW_TOO_LONG,
        hint=f"Shorten the prompts, lower recipe.grpo.max_completion_length, or {remedy}.",
    )


def check_fields(grader: Grader, rows: Sequence[PromptRow], name: str) -> None:
    """Raise RunError if the grader's templates read a field that a row lacks. `name`: file name."""
    missing = missing_fields(grader, (row.item for row in rows))
    if not missing:
        return
    first = missing[0]
    raise RunError(
        ErrorCode.GRADER_INVALID,
        f"{name}, row {rows[first.first].number}: {first}; the same in {first.rows} of "
        f"{len(rows)} rows.",
        category=ErrorCategory.GRADER,
        hint="Fix the rows, or the field name in the grader's template.",
        param="method.reinforcement.grader",
    )
