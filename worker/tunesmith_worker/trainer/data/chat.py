"""Rows rendered as text for one tokenizer, with the character spans that carry loss.

The spans are computed from the turns of the conversation, not by searching for marker strings.
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

_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, KeyError, IndexError, ValueError)
"""Exceptions that a chat template may raise: by calling `raise_exception`, or because of unexpected
values."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One training example as text."""

    text: str
    spans: tuple[Span, ...]
    """Character ranges that carry loss."""


@dataclass(frozen=True, kw_only=True)
class RenderedRow:
    number: int
    examples: tuple[Rendered, ...]
    """The row's examples: usually one; several if the template rewrites earlier turns; none if
    nothing can be trained."""
    is_chat: bool
    """True if the text, including its special tokens, comes from the chat template."""
    skipped_turns: int = 0
    """Number of assistant turns that are not trained, because their span is unknown."""


def render(tokenizer: Tokenizer, row: Row, *, assistant_only: bool) -> RenderedRow:
    """Return the text that the model reads for a row, with the spans that carry loss."""
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
    """Return the text before the model's answer, and True if the chat template produced the text
    and its special tokens.
    """
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
    """Chat template of a tokenizer, applied to the first messages of one row."""

    def __init__(self, tokenizer: Tokenizer, row: Row) -> None:
        assert row.messages is not None
        self._tokenizer = tokenizer
        self._number = row.number
        self._messages = [message.for_template() for message in row.messages]
        self._tools = list(row.tools) if row.tools else None

    def text(self, count: int, *, prompt: bool = False) -> str:
        """Return the first `count` messages as rendered text. `prompt`: True to append the
        generation prompt."""
        rendered: str = self._tokenizer.apply_chat_template(
            self._messages[:count],
            tools=self._tools,
            add_generation_prompt=prompt,
            tokenize=False,
        )
        return rendered

    def whole(self, count: int, *, prompt: bool = False) -> str:
        """Return `text(count)`. Raises DataError if the template rejects the messages."""
        try:
            return self.text(count, prompt=prompt)
        except _TEMPLATE_ERRORS as error:
            roles = ", ".join(message["role"] for message in self._messages[:count][:8])
            raise DataError(
                f"row {self._number}: the model's chat template rejects the messages (roles "
                f"{roles}): {error}",
                hint="Change the row to fit the model's template. Most templates require "
                "alternating user and assistant turns after at most one system message.",
            ) from error

    def turn(self, index: int, whole: str, count: int) -> Span | None:
        """Return the span of turn `index` in `whole`, or None if the span cannot be determined.

        `whole`: rendered text of the first `count` messages. The turn is the text that message
        `index` adds to the rendered earlier messages, without the generation prompt and without
        white space at the end. The turn has no span if `whole` does not start with the rendered
        messages before the turn, or with the rendered messages up to the turn.
        """
        try:
            prompt = self.text(index, prompt=True) if index else self._opening(whole)
            if not whole.startswith(prompt):  # the generation prompt may open a think block
                before = self.text(index)
                if not whole.startswith(before):
                    return None
                prompt = whole[: max(len(before), _common_length(prompt, whole))]
            upto = whole if index + 1 == count else self.text(index + 1)
        except _TEMPLATE_ERRORS:
            return None  # the template rejects a conversation that ends here
        if not whole.startswith(upto) or len(upto) < len(prompt):
            return None
        return len(prompt), len(prompt) + len(upto[len(prompt) :].rstrip())

    def _opening(self, whole: str) -> str:
        """Return the template's text before the first message, which the assistant wrote.

        Because templates cannot render an empty conversation, render the first message with a
        generation prompt, and search `whole` for this generation prompt."""
        first, prompted = self.text(1), self.text(1, prompt=True)
        prompt = prompted[len(first) :] if prompted.startswith(first) else ""
        start = whole.find(prompt) + len(prompt)
        content = str(self._messages[0].get("content") or "").strip()
        if not prompt or prompt not in whole or not whole[start:].lstrip().startswith(content):
            raise ValueError("the start of the first turn cannot be determined")
        return whole[:start]

    def marked_turns(self, count: int) -> list[Span]:
        """Return the spans that the template marks with {% generation %}, in order."""
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


def _common_length(left: str, right: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), len(left))


def _render_whole(template: _Template, row: Row) -> RenderedRow:
    text = template.whole(len(row.messages or ()))
    example = Rendered(text=text, spans=((0, len(text)),))
    return RenderedRow(number=row.number, examples=(example,), is_chat=True)


def _render_turns(template: _Template, row: Row) -> RenderedRow:
    """Return examples that train the assistant's turns.

    The first example ends with the last trained turn. Most templates only append text, so this
    example trains every turn. If a template rewrites earlier turns (Qwen3 drops earlier thinking),
    further examples train these turns: each further example ends with the last turn that no earlier
    example trains. Messages after an example's last turn are not rendered, because the model does
    not see them when it generates this turn.
    """
    messages = row.messages or ()
    pending = [i for i, m in enumerate(messages) if m.role == "assistant" and m.trained]
    examples: list[Rendered] = []
    skipped = 0
    while pending:
        last = pending[-1]
        whole = template.whole(last + 1)
        turn_spans = {i: span for i in pending if (span := template.turn(i, whole, last + 1))}
        if last not in turn_spans:
            turn_spans |= _last_by_markers(template, messages[: last + 1])
        if last not in turn_spans:
            skipped += 1
        if turn_spans:
            spans = tuple(turn_spans[i] for i in sorted(turn_spans))
            examples.append(Rendered(text=whole, spans=spans))
        pending = [i for i in pending if i not in turn_spans and i != last]
    return RenderedRow(
        number=row.number, examples=tuple(examples), is_chat=True, skipped_turns=skipped
    )


def _last_by_markers(template: _Template, messages: Sequence[Message]) -> dict[int, Span]:
    """Return the span of the last turn, which the template marks with {% generation %}. Return no
    span if the number of marked spans is not the number of assistant turns."""
    spans = template.marked_turns(len(messages))
    if len(spans) != sum(m.role == "assistant" for m in messages):
        return {}
    return {len(messages) - 1: spans[-1]}
