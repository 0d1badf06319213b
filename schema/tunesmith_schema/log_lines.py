"""Formatter for the log lines of server and worker. No text from a request, a file or a worker can
forge a line: control characters are escaped, and the lines of a traceback are indented. API keys
and secrets of links, for example in a URL, are shortened to their prefix."""

from __future__ import annotations

import copy
import logging
import re

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_LINE = 10_000
"""Maximum length of a message; the rest is cut."""
_INDENT = "    | "
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, marks that change the direction of text, and
halves of surrogate pairs."""

_KEY = re.compile(r"(\btunesk-|\bts-|[?&]link=)[A-Za-z0-9_-]{43}")
"""API keys of this and of earlier releases, and secrets of links."""


class LineFormatter(logging.Formatter):
    """Formatter that writes each message as one line, with the format of another formatter."""

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__(LOG_FORMAT)
        self._inner = inner or logging.Formatter(LOG_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        plain = copy.copy(record)
        plain.msg, plain.args = escaped(_message(record))[:MAX_LINE], None
        if record.exc_info:
            plain.exc_text = _indented(self.formatException(record.exc_info))
        elif record.exc_text:
            plain.exc_text = _indented(record.exc_text)
        plain.stack_info = record.stack_info and _indented(record.stack_info)
        return self._inner.format(plain)


def secure_handlers(logger: logging.Logger) -> None:
    """Let all handlers of a logger write one line per message."""
    for handler in logger.handlers:
        if not isinstance(handler.formatter, LineFormatter):
            handler.setFormatter(LineFormatter(handler.formatter))


def escaped(text: str) -> str:
    """Return the text with control characters as `\\xNN` or `\\uNNNN`, without API keys."""
    return _CONTROL.sub(_escape, _KEY.sub(r"\1...", text))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(match[0])
    return named or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # wrong arguments, or an object that has no text
        return f"{record.msg} (its arguments cannot be shown: {type(error).__name__})"


def _indented(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in text.split("\n"))
