"""The prompts of a reinforcement run: token ids, the fields of each row, and what was lost.

A prompt is never cut: a model that is asked half a question learns from the answers to it.
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
from .prompt_rows import PromptRow, read_prompt_rows
from .rows import no_rows

_RAISE = "raise recipe.max_seq_length"
_AT_ONCE = 1000
"""Prompts that are tokenised together."""


@dataclass(kw_only=True)
class PromptCounts:
    rows: int = 0
    kept: int = 0
    dropped_too_long: int = 0
    tokens: int = 0
    longest: int = 0
    """Tokens of the longest prompt that was kept."""
    plain: int = 0
    """Prompts that no chat template wrote, though the model has one."""

    def as_data(self) -> dict[str, Any]:  # Any: JSON; all are integers
        return asdict(self)

    def summary(self, name: str) -> str:
        return (
            f"{name}: {self.rows} rows gave {self.kept} prompts with {self.tokens} tokens; the "
            f"longest has {self.longest}"
        )

    def losses(self, name: str, limit: int | None) -> Iterator[str]:
        """A sentence for each thing that is not as the user may think."""
        if self.dropped_too_long:
            yield (
                f"{name}: {self.dropped_too_long} of {self.rows} prompts dropped, longer than the "
                f"{limit} tokens that are left beside a completion"
            )
        if self.plain:
            yield (
                f"{name}: {self.plain} prompts are plain text, and go to the model without its "
                "chat template: 'messages' or 'question' rows would go through it"
            )


@dataclass(frozen=True, kw_only=True)
class Prompts:
    rows: Sequence[PromptRow]
    """Of the training file, in its order."""
    validation: Sequence[PromptRow] | None
    """Of the validation file, if there is one."""

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt of both files."""
        return max(len(row.prompt_ids) for row in (*self.rows, *(self.validation or ())))


def read_prompts(
    run: RunDirectory,
    spec: RunSpec,
    base: Base,
    events: EventLog,
    *,
    max_prompt_tokens: int | None,
) -> Prompts:
    """What the spec's files ask. Longer prompts are dropped and counted, or refused, as
    `recipe.overlong` says.

    Raises DataError for a row or a file that cannot be used, RunError for a tokenizer that is not
    the model's and for a grader that reads a field which a row has not."""

    def read(file: str) -> tuple[PromptRow, ...]:
        path, name = run.root / file, spec.display_name(file)
        rows, counts = prompt_rows(
            path,
            base.tokenizer,
            limit=max_prompt_tokens,
            refuse=spec.recipe.overlong == "error",
            more_room="take a model with a longer context"
            if spec.recipe.max_seq_length == "auto"
            else _RAISE,
            vocabulary=base.vocabulary,
            name=name,
        )
        events.message(counts.summary(name), data=counts.as_data())
        for loss in counts.losses(name, max_prompt_tokens):
            events.message(loss, level="warn", data=counts.as_data())
        if spec.grader is not None:
            _check_fields(spec.grader, rows, name)
        return rows

    return Prompts(
        rows=read(spec.training_file),
        validation=read(spec.validation_file) if spec.validation_file else None,
    )


def prompt_rows(
    path: Path,
    tokenizer: Tokenizer,
    *,
    limit: int | None,
    refuse: bool,
    vocabulary: int,
    more_room: str = _RAISE,
    name: str | None = None,
) -> tuple[tuple[PromptRow, ...], PromptCounts]:
    """The file's prompts in order. `limit`: tokens a prompt may have; `refuse`: a longer one ends
    the run; `more_room`: what would move the limit, for an error's hint. `vocabulary`: number of
    the model's embeddings."""
    name = name or path.name
    counts = PromptCounts()
    kept = []
    for row, by_template in _tokenized(path, name, tokenizer):
        counts.rows += 1
        tokens = len(row.prompt_ids)
        if tokens == 0:
            raise DataError(f"{name}, row {row.number}: the tokenizer gives it no token.")
        if limit is not None and tokens > limit:
            if refuse:
                raise _too_long(name, row, limit, more_room)
            counts.dropped_too_long += 1
            continue
        counts.kept += 1
        counts.tokens += tokens
        counts.longest = max(counts.longest, tokens)
        counts.plain += tokenizer.chat_template is not None and not by_template
        kept.append(row)
    if counts.rows == 0:
        raise no_rows(name)
    if not kept:
        raise _nothing_left(name, counts, limit, more_room)
    check_vocabulary([row.prompt_ids for row in kept], vocabulary)
    return tuple(kept), counts


def _tokenized(path: Path, name: str, tokenizer: Tokenizer) -> Iterator[tuple[PromptRow, bool]]:
    """Each prompt, and whether the chat template wrote it."""
    rows = read_prompt_rows(path, name)
    while some := list(islice(rows, _AT_ONCE)):
        rendered = [render_prompt(tokenizer, asked.row) for asked in some]
        encoded = _encode(rendered, tokenizer)
        for asked, (text, by_template), ids in zip(some, rendered, encoded, strict=True):
            number, ids = asked.row.number, tuple(ids)
            yield PromptRow(number=number, prompt_ids=ids, item=asked.item, text=text), by_template


def _encode(rendered: Sequence[tuple[str, bool]], tokenizer: Tokenizer) -> list[Sequence[int]]:
    """What a template wrote has its special tokens already; plain text gets the tokenizer's, but
    not one that ends it."""
    encoded: list[Sequence[int]] = [()] * len(rendered)
    for is_chat in (True, False):
        places = [i for i, (_, by_template) in enumerate(rendered) if by_template == is_chat]
        if not places:
            continue
        ids = tokenizer(
            [rendered[i][0] for i in places],
            add_special_tokens=not is_chat,
            return_attention_mask=False,
            verbose=False,  # no word about the model's length: prompts are measured by the caller
        )["input_ids"]
        for place, of_prompt in zip(places, ids, strict=True):
            ends = not is_chat and of_prompt[-1:] == [tokenizer.eos_token_id]
            encoded[place] = of_prompt[:-1] if ends and len(of_prompt) > 1 else of_prompt
    return encoded


def _too_long(name: str, row: PromptRow, limit: int, more_room: str) -> DataError:
    return DataError(
        f"{name}, row {row.number}: {len(row.prompt_ids)} tokens are more than the {limit} that "
        "are left beside a completion.",
        code=ErrorCode.ROW_TOO_LONG,
        hint=f"Shorten the prompt, lower recipe.grpo.max_completion_length, {more_room}, or set "
        "recipe.overlong to 'drop'.",
    )


def _nothing_left(name: str, counts: PromptCounts, limit: int | None, more_room: str) -> DataError:
    return DataError(
        f"{name}: all {counts.rows} prompts are longer than the {limit} tokens that are left "
        "beside a completion, and were dropped.",
        code=ErrorCode.ROW_TOO_LONG,
        hint=f"Shorten the prompts, lower recipe.grpo.max_completion_length, or {more_room}.",
    )


def _check_fields(grader: Grader, rows: Sequence[PromptRow], name: str) -> None:
    """`rows`: of the file `name`. Raises RunError at the first field that one lacks."""
    missing = missing_fields(grader, (row.item for row in rows))
    if not missing:
        return
    first = missing[0]
    raise RunError(
        ErrorCode.GRADER_INVALID,
        f"{name}, row {rows[first.first].number}: {first}; so it is with {first.rows} of "
        f"{len(rows)} rows.",
        category=ErrorCategory.GRADER,
        hint="Mend the rows, or the name in the grader's template.",
        param="method.reinforcement.grader",
    )
