"""Replace control characters and bidirectional characters by visible symbols, in text that comes
from users or files. Without symbols, a name such as `report\\u202Efdp.exe` would look like another
name. Jinja2 escapes markup; this module replaces the characters in every value that a template
prints."""

from __future__ import annotations

import re
from typing import Any

_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u200b\u2028\u2029\u2060-\u2064\ufeff\U000e0000-\U000e007f"
_NAME = re.compile(r"\S+[._=/]\w")
HIDDEN = re.compile(
    f"[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f{_BIDIRECTIONAL}{_INVISIBLE}\\ud800-\\udfff]"
)
"""Characters that are invisible, or that change the order of other characters."""


def visible(text: str) -> str:
    """Return `text` with a symbol in place of each character that is invisible or changes the order
    of other characters. Tabs and line ends stay."""
    return HIDDEN.sub(_symbol, text)


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)  # the block of control pictures
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:  # half a character, which UTF-8 cannot express
        return "\ufffd"
    return f"[U+{code:04X}]"


def finalize(value: Any) -> Any:  # Any: whatever a template prints
    """Replace invisible characters in the value of a template's expression, before the value is
    escaped."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return visible(value)
    return value


def clipped(text: str, length: int = 200) -> str:
    """Return at most `length` characters of `text`, with an ellipsis if the text was cut."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def sentence(text: str) -> str:
    """Return a message of the API as a sentence: with a capital letter and a full stop. A name
    such as `recipe.eval_steps` or `rows.jsonl` at the beginning stays as it is."""
    ended = text if text.endswith((".", "!", "?", ":", "…")) else f"{text}."
    return ended if _NAME.match(text) else ended[:1].upper() + ended[1:]
