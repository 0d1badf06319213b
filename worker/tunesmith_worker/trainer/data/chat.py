"""Rows as text for one tokenizer, with the spans of characters that carry loss.

The spans come from the structure of the conversation, never from searching for marker strings.
Does not tokenise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import DataError

from .formats import Message, Row

Span = tuple[int, int]
Tokenizer = Any  # Any: transformers ships types too slow for mypy to read

_REFUSALS = (jinja2.TemplateError, TypeError, KeyError, IndexError, ValueError)
"""What a template raises, by `raise_exception` or by stumbling over what it did not expect."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One training example as text."""

    text: str
    spans: tuple[Span, ...]
    """Characters that carry loss."""


@dataclass(frozen=True, kw_only=True)
class RenderedRow:
    number: int
    examples: tuple[Rendered, ...]
    """One, or more when the template rewrites earlier turns; none when no turn can be trained."""
    is_chat: bool
    """The template wrote all special tokens: add none."""
    turns_left_out: int = 0
    """Assistant turns that no example trains, because nothing proves where they stand."""


def render(tokenizer: Tokenizer, row: Row, *, assistant_only: bool) -> RenderedRow:
    """The row as the model will read it, with the spans it is to learn."""
    if row.messages is not None and tokenizer.chat_template is not None:
        template = _Template(tokenizer, row)
        return _render_turns(template, row) if assistant_only else _render_whole(template, row)
    if row.text is None:
        raise _no_template(row.number)
    text = row.prompt + row.text
    start = len(row.prompt) if assistant_only else 0
    example = Rendered(text=text, spans=((start, len(text)),))
    return RenderedRow(number=row.number, examples=(example,), is_chat=False)


def render_prompt(tokenizer: Tokenizer, row: Row) -> tuple[str, bool]:
    """What the row asks, up to where the model is to answer; whether the template wrote it, special
    tokens included."""
    if row.messages is not None and tokenizer.chat_template is not None:
        return _Template(tokenizer, row).whole(len(row.messages), prompt=True), True
    if row.text is None:
        raise _no_template(row.number)
    return row.prompt, False


def _no_template(number: int) -> DataError:
    return DataError(
        f"row {number} is a conversation, but the model's tokenizer has no chat template.",
        code=ErrorCode.TEMPLATE_MISSING,
        hint="Use an instruction-tuned model, or send prompt/completion rows with plain text.",
    )


class _Template:
    """The chat template applied to the first `count` messages of one row."""

    def __init__(self, tokenizer: Tokenizer, row: Row) -> None:
        assert row.messages is not None
        self._tokenizer = tokenizer
        self._number = row.number
        self._messages = [message.for_template() for message in row.messages]
        self._tools = list(row.tools) if row.tools else None

    def text(self, count: int, *, prompt: bool = False) -> str:
        """`prompt` adds what makes the model answer."""
        rendered: str = self._tokenizer.apply_chat_template(
            self._messages[:count],
            tools=self._tools,
            add_generation_prompt=prompt,
            tokenize=False,
        )
        return rendered

    def whole(self, count: int, *, prompt: bool = False) -> str:
        """Like `text`; when the template refuses the messages, the row is a bad row."""
        try:
            return self.text(count, prompt=prompt)
        except _REFUSALS as error:
            roles = ", ".join(message["role"] for message in self._messages[:count][:8])
            raise DataError(
                f"row {self._number}: the model's chat template refuses it (roles {roles}): "
                f"{error}",
                hint="Change the row to what the model's template allows: most want user and "
                "assistant in turn, after at most one system message.",
            ) from error

    def turn(self, index: int, whole: str, count: int) -> Span | None:
        """Where the turn at `index` stands in `whole`, the first `count` messages; None when that
        cannot be proven.

        The turn is what follows render(messages[:index]) up to the end of
        render(messages[:index + 1]), if both are prefixes of `whole`. Of that, what the
        generation prompt gives is not the model's to say, nor is white space after the
        end-of-turn token.
        """
        try:
            prompt = self.text(index, prompt=True) if index else self._opening(whole)
            if not whole.startswith(prompt):  # e.g. it opens a think block that history lacks
                before = self.text(index)
                if not whole.startswith(before):
                    return None
                prompt = whole[: max(len(before), _common_length(prompt, whole))]
            upto = whole if index + 1 == count else self.text(index + 1)
        except _REFUSALS:
            return None  # it refuses a conversation that stops here
        if not whole.startswith(upto) or len(upto) < len(prompt):
            return None
        return len(prompt), len(prompt) + len(upto[len(prompt) :].rstrip())

    def _opening(self, whole: str) -> str:
        """What precedes a conversation's first turn when that is the assistant's. Templates refuse
        to render no message at all, so what asks for an answer is taken from where it shows: after
        the first message."""
        one, asked = self.text(1), self.text(1, prompt=True)
        ask = asked[len(one) :] if asked.startswith(one) else ""
        start = whole.find(ask) + len(ask)
        content = str(self._messages[0].get("content") or "").strip()
        if not ask or ask not in whole or not whole[start:].lstrip().startswith(content):
            raise ValueError("the first turn cannot be told from what precedes it")
        return whole[:start]

    def marked_turns(self, count: int) -> list[Span]:
        """The spans that the template itself marks with {% generation %}, in order."""
        if not _GENERATION.search(str(self._tokenizer.chat_template)):
            return []
        encoded = self._tokenizer.apply_chat_template(
            self._messages[:count],
            tools=self._tools,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"return_offsets_mapping": True},
        )
        spans: list[Span] = []
        was_marked = False
        for marked, (start, end) in zip(
            encoded["assistant_masks"], encoded["offset_mapping"], strict=True
        ):
            if marked and was_marked:
                spans[-1] = (spans[-1][0], end)
            elif marked:
                spans.append((start, end))
            was_marked = bool(marked)
        return spans


def _common_length(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def _render_whole(template: _Template, row: Row) -> RenderedRow:
    text = template.whole(len(row.messages or ()))
    example = Rendered(text=text, spans=((0, len(text)),))
    return RenderedRow(number=row.number, examples=(example,), is_chat=True)


def _render_turns(template: _Template, row: Row) -> RenderedRow:
    """Train the assistant's turns.

    Each pass renders up to the last turn not yet trained, just as the model will see it when it
    answers there. Most templates only ever append: one pass trains every turn. Those that rewrite
    history (Qwen3 drops earlier thinking) take a further pass for each turn that they rewrote.
    """
    messages = row.messages or ()
    pending = [i for i, m in enumerate(messages) if m.role == "assistant" and m.trained]
    examples: list[Rendered] = []
    left_out = 0
    while pending:
        last = pending[-1]
        whole = template.whole(last + 1)
        found = {i: span for i in pending if (span := template.turn(i, whole, last + 1))}
        if last not in found:
            found |= _last_by_markers(template, messages[: last + 1])
        if last not in found:
            left_out += 1
        if found:
            spans = tuple(found[i] for i in sorted(found))
            examples.append(Rendered(text=whole, spans=spans))
        pending = [i for i in pending if i not in found and i != last]
    return RenderedRow(
        number=row.number, examples=tuple(examples), is_chat=True, turns_left_out=left_out
    )


def _last_by_markers(template: _Template, messages: Sequence[Message]) -> dict[int, Span]:
    """The last turn by the template's own markers, if those mark each assistant turn once."""
    spans = template.marked_turns(len(messages))
    if len(spans) != sum(m.role == "assistant" for m in messages):
        return {}
    return {len(messages) - 1: spans[-1]}
