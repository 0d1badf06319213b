"""Log lines: one per message, whatever a message contains."""

from __future__ import annotations

import io
import logging

import pytest

from tunesmith_schema.log_lines import MAX_LINE, LineFormatter, secure_handlers

FORGED = "2026-01-01 00:00:00,000 INFO tunesmith.access: GET /v1/models 200"


@pytest.fixture
def logger() -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    secure_handlers(logger)
    return logger


def lines(logger: logging.Logger) -> list[str]:
    [handler] = logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    return str(handler.stream.getvalue()).splitlines()


@pytest.mark.parametrize(
    "between", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[2K\r"]
)
def test_a_message_is_one_line(logger: logging.Logger, between: str) -> None:
    logger.warning("no file %r %s", "a", f"x{between}{FORGED}")
    [line] = lines(logger)
    assert line.endswith(FORGED)
    assert line.isprintable()


def test_a_traceback_is_indented(logger: logging.Logger) -> None:
    try:
        raise ValueError(f"x\n{FORGED}\r{FORGED}")
    except ValueError:
        logger.exception("failed", stack_info=True)
    first, *rest = lines(logger)
    assert first.endswith("ERROR test: failed")
    assert len(rest) > 4
    assert all(line.startswith("    | ") for line in rest)
    assert any("in test_a_traceback_is_indented" in line for line in rest)


def test_an_object_without_text_is_a_line_too(logger: logging.Logger) -> None:
    logger.warning("%d jobs", "many")
    assert len(lines(logger)) == 1


def test_a_line_is_bounded_and_can_be_encoded(logger: logging.Logger) -> None:
    logger.warning("\ud800" + "x" * 5_000_000)
    [line] = lines(logger)
    assert len(line.encode()) < MAX_LINE + 100


def test_handlers_are_secured_once(logger: logging.Logger) -> None:
    [handler] = logger.handlers
    before = handler.formatter
    secure_handlers(logger)
    assert handler.formatter is before
    assert isinstance(before, LineFormatter)
