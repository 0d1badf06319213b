"""Row formats of training data: their columns, their checks, and the common form `Row`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tunesmith_schema import RowFormat

ROLES = ("system", "user", "assistant", "tool")
_SHAREGPT_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant"}
_SHAREGPT_ROLES |= {"assistant": "assistant", "tool": "tool"}

COLUMNS: Mapping[RowFormat, tuple[str, ...]] = MappingProxyType(
    {
        RowFormat.MESSAGES: ("messages",),
        RowFormat.SHAREGPT: ("conversations",),
        RowFormat.PROMPT_COMPLETION: ("prompt", "completion"),
        RowFormat.ALPACA: ("instruction", "output"),
        RowFormat.QUESTION_ANSWER: ("question", "answer"),
        RowFormat.TEXT: ("text",),
    }
)
"""Required columns of each format. `detect` tries the formats in this order."""
COLUMN_SETS = "; ".join("'" + "' + '".join(columns) + "'" for columns in COLUMNS.values())
"""COLUMNS as text for messages."""

_ALPACA = "Below is an instruction that describes a task{more}. Write a response that "
_ALPACA += "appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n"
_ALPACA_INPUT = ", paired with an input that provides further context"

MAX_MESSAGE_CHARS = 500
"""Maximum length of a BadRow message, which may quote a huge row."""


class BadRow(ValueError):
    """Error in one row. The message does not contain the row's number."""

    def __init__(self, message: str) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 3] + "..."
        super().__init__(message)


def json_excerpt(error: json.JSONDecodeError) -> str:
    """Return the part of the line around a JSON error, quoted."""
    line, place = error.doc.split("\n")[error.lineno - 1], error.colno - 1
    start, end = max(0, place - 40), place + 40
    return repr(f"{'...' * (start > 0)}{line[start:end]}{'...' * (end < len(line))}")


@dataclass(frozen=True, kw_only=True)
class Message:
    role: str
    content: str | None
    trained: bool = True
    """False for an assistant turn without loss (OpenAI's `weight: 0`, or a turn in a prompt)."""
    # Any: tool calls, passed to the template
    extra: Mapping[str, Any] = field(default_factory=dict)

    def for_template(self) -> dict[str, Any]:  # Any: input of a Jinja template
        return {"role": self.role, "content": self.content, **self.extra}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: chat (`messages`), plain text with a prompt (`prompt` + `text`), or text.
    Question/answer and Alpaca rows have chat and plain text; plain text is used only if the
    tokenizer has no chat template."""

    number: int
    messages: tuple[Message, ...] | None = None
    prompt: str = ""
    text: str | None = None
    """Text that carries loss."""
    tools: tuple[Any, ...] | None = None  # Any: JSON schemas, passed to the template


def detect(value: Any) -> RowFormat:  # Any: one record of a file
    if not isinstance(value, dict):
        raise BadRow(f"is a {type(value).__name__}, must be an object with named columns")
    for format, columns in COLUMNS.items():
        if all(value.get(column) is not None for column in columns):
            return format
    for columns in COLUMNS.values():
        if all(column in value for column in columns):
            raise BadRow(f"{next(name for name in columns if value[name] is None)} is null")
    raise BadRow(
        f"has the columns {', '.join(repr(name[:40]) for name in list(value)[:8]) or '(none)'}: "
        f"needs one of {COLUMN_SETS}"
    )


def parse(number: int, value: dict[str, Any], format: RowFormat) -> Row:  # Any: JSON
    match format:
        case RowFormat.MESSAGES:
            messages = read_messages("messages", value["messages"])
            _needs_assistant("messages", messages)
            return Row(number=number, messages=messages, tools=read_tools(value))
        case RowFormat.SHAREGPT:
            messages = _conversations(value["conversations"])
            _needs_assistant("conversations", messages)
            return Row(number=number, messages=messages, tools=read_tools(value))
        case RowFormat.PROMPT_COMPLETION:
            return _prompt_completion(number, value)
        case RowFormat.ALPACA:
            return _alpaca(number, value)
        case RowFormat.QUESTION_ANSWER:
            question, prompt = read_question(value)
            return _single_turn(number, question, read_text(value, "answer"), prompt=prompt)
        case RowFormat.TEXT:
            return Row(number=number, text=read_text(value, "text"))


def _prompt_completion(number: int, value: dict[str, Any]) -> Row:  # Any: JSON
    prompt, completion = value["prompt"], value["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return Row(
            number=number,
            prompt=read_text(value, "prompt", may_be_empty=True),
            text=read_text(value, "completion"),
        )
    if not isinstance(prompt, list) or not isinstance(completion, list):
        raise BadRow("prompt and completion must both be strings or both be lists of messages")
    untrained = tuple(replace(m, trained=False) for m in read_messages("prompt", prompt))
    trained = read_messages("completion", completion)
    _needs_assistant("completion", trained)
    return Row(number=number, messages=untrained + trained, tools=read_tools(value))


def _alpaca(number: int, value: dict[str, Any]) -> Row:  # Any: JSON
    question, prompt = read_instruction(value)
    return _single_turn(number, question, read_text(value, "output"), prompt=prompt)


def read_instruction(value: dict[str, Any]) -> tuple[str, str]:  # Any: JSON
    """Return the prompt of an Alpaca row as a user message and as plain text."""
    instruction = read_text(value, "instruction")
    context = read_text(value, "input", may_be_empty=True) if value.get("input") is not None else ""
    prompt = _ALPACA.format(more=_ALPACA_INPUT if context else "", instruction=instruction)
    prompt += f"### Input:\n{context}\n\n" if context else ""
    question = f"{instruction}\n\n{context}" if context else instruction
    return question, f"{prompt}### Response:\n"


def read_question(value: dict[str, Any]) -> tuple[str, str]:  # Any: JSON
    """Return the question as a user message and as plain text."""
    question = read_text(value, "question")
    return question, f"{question}\n"


def _single_turn(number: int, question: str, answer: str, *, prompt: str) -> Row:
    messages = (
        Message(role="user", content=question),
        Message(role="assistant", content=answer),
    )
    return Row(number=number, messages=messages, prompt=prompt, text=answer)


def read_messages(name: str, value: Any) -> tuple[Message, ...]:  # Any: JSON
    if not isinstance(value, list) or not value:
        raise BadRow(f"{name} must be a list with at least one message")
    return tuple(_message(f"{name}[{i}]", item) for i, item in enumerate(value))


def _message(where: str, item: Any) -> Message:  # Any: JSON
    if not isinstance(item, dict):
        raise BadRow(f"{where} is a {type(item).__name__}, must be an object with role and content")
    role = item.get("role")
    if role == "developer":  # OpenAI's new name for "system"
        role = "system"
    if role not in ROLES:
        raise BadRow(f"{where}.role is {role!r}: must be one of {', '.join(ROLES)}")
    content = _content(where, item.get("content"))
    # Parquet fills missing columns with nulls.
    known = ("role", "content", "weight")
    extra = {k: v for k, v in item.items() if k not in known and v is not None}
    if "tool_calls" in extra:
        extra["tool_calls"] = _tool_calls(f"{where}.tool_calls", extra["tool_calls"])
    if role == "assistant" and not content and not extra.get("tool_calls"):
        raise BadRow(f"{where}.content is empty: an assistant turn needs text or tool_calls")
    if content is None and role != "assistant":
        raise BadRow(f"{where}.content is missing")
    weight = item.get("weight")
    if weight not in (None, 0, 1):
        raise BadRow(f"{where}.weight is {weight!r}: must be 0 or 1")
    return Message(role=role, content=content, trained=weight != 0, extra=extra)


def _tool_calls(where: str, calls: Any) -> list[Any]:  # Any: JSON
    """Return the tool calls with their arguments as JSON objects. OpenAI stores arguments as JSON
    text, which templates would encode a second time."""
    if not isinstance(calls, list):
        raise BadRow(f"{where} is a {type(calls).__name__}, must be a list")
    parsed = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadRow(f"{where}[{i}] has no function")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except json.JSONDecodeError as error:
                raise BadRow(
                    f"{where}[{i}].function.arguments is not valid JSON at character "
                    f"{error.pos + 1}: {json_excerpt(error)}. Write a JSON object such as "
                    '{"city": "Paris"}'
                ) from None
            except ValueError:  # Python does not convert numbers with more than 4,300 digits
                raise BadRow(
                    f"{where}[{i}].function.arguments has a number with more than 4,300 digits"
                ) from None
            call = {**call, "function": {**function, "arguments": arguments}}
        parsed.append(call)
    return parsed


def _content(where: str, value: Any) -> str | None:  # Any: JSON
    if value is None:
        return None
    if isinstance(value, list):
        for i, part in enumerate(value):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind != "text" or not isinstance(part.get("text"), str):
                raise BadRow(f"{where}.content[{i}] is a {kind!r} part: only text is supported")
        value = "".join(part["text"] for part in value)
    return valid_text(f"{where}.content", value)


def _conversations(value: Any) -> tuple[Message, ...]:  # Any: JSON
    if not isinstance(value, list) or not value:
        raise BadRow("conversations must be a list with at least one turn")
    messages = []
    for i, item in enumerate(value):
        where = f"conversations[{i}]"
        if not isinstance(item, dict):
            raise BadRow(f"{where} is a {type(item).__name__}, must be an object")
        role = _SHAREGPT_ROLES.get(str(item.get("from")))
        if role is None:
            names = ", ".join(_SHAREGPT_ROLES)
            raise BadRow(f"{where}.from is {item.get('from')!r}: must be one of {names}")
        content = valid_text(f"{where}.value", item.get("value"))
        if role == "assistant" and not content:
            raise BadRow(f"{where}.value is empty: an assistant turn needs text")
        messages.append(Message(role=role, content=content))
    return tuple(messages)


def _needs_assistant(name: str, messages: tuple[Message, ...]) -> None:
    """Raise BadRow if no assistant turn can be trained. The order of the roles is checked later, by
    the model's chat template."""
    first = next((m.role for m in messages if m.role in ("assistant", "tool")), None)
    if first == "tool":
        raise BadRow(f"{name} has a tool message before the first assistant message")
    if not any(m.role == "assistant" and m.trained for m in messages):
        raise BadRow(f"{name} has no assistant turn to train on")


def read_tools(value: dict[str, Any]) -> tuple[Any, ...] | None:  # Any: JSON
    tools = value.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise BadRow(f"tools is a {type(tools).__name__}, must be a list of tool definitions")
    return tuple(tools) or None


def read_text(
    value: dict[str, Any], column: str, *, may_be_empty: bool = False
) -> str:  # Any: JSON
    text = valid_text(column, value[column])
    if not text and not may_be_empty:
        raise BadRow(f"{column} is empty")
    return text


def valid_text(where: str, value: Any) -> str:  # Any: JSON
    if not isinstance(value, str):
        raise BadRow(f"{where} is a {type(value).__name__}, must be a string")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            lone = f"half of a surrogate pair at character {error.start + 1}"
            raise BadRow(f"{where} is not valid Unicode: {lone}") from None
    return value
