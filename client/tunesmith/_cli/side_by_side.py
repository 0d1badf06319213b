"""Two answers at the same time, in two columns on a wide terminal, else one below the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from threading import Event, Thread

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .conversation import Answer, Conversation

WIDE = 100
"""Minimum number of columns of a terminal that shows two answers side by side."""
_SECONDS = 0.1
"""Seconds between two updates of the screen."""
_LEAVE_SECONDS = 2.0
"""Maximum seconds to wait after Ctrl-C until the connections of the answers are closed."""


def answer_both(conversations: Sequence[Conversation], question: str) -> list[Answer]:
    """Print the answers of all models, and return them. Ctrl-C stops all."""
    console = Console(markup=False, highlight=False, emoji=False)
    answers = [Answer() for _ in conversations]
    stop = Event()
    threads = [
        Thread(target=_read, args=(conversation, question, answer, stop), daemon=True)
        for conversation, answer in zip(conversations, answers, strict=True)
    ]
    for thread in threads:
        thread.start()
    names = [conversation.model for conversation in conversations]
    try:
        if console.is_terminal and console.width >= WIDE:
            _show_columns(console, names, answers)
        else:
            _show_in_turn(names, answers)
    except KeyboardInterrupt:
        stop.set()
        for answer in answers:
            if not answer.done:
                answer.note = "stopped"
        for thread in threads:
            thread.join(_LEAVE_SECONDS)
        sys.stdout.write("\n")
    return answers


def _read(conversation: Conversation, question: str, answer: Answer, stop: Event) -> None:
    for _ in conversation.ask(question, answer, stop):
        pass  # `answer` already has the text


def _show_columns(console: Console, names: Sequence[str], answers: Sequence[Answer]) -> None:
    """Show the last lines of the answers while they arrive, then the whole answers."""
    pause = Event()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while not all(answer.done for answer in answers):
                live.update(_table(names, answers, console.height - 4), refresh=True)
                pause.wait(_SECONDS)
    finally:
        console.print(_table(names, answers, None))


def _table(names: Sequence[str], answers: Sequence[Answer], lines: int | None) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 1, 0))
    for name in names:
        table.add_column(Text(name, style="bold"), ratio=1, overflow="fold")
    table.add_row(*(_end_of(answer, lines) for answer in answers))
    return table


def _end_of(answer: Answer, lines: int | None) -> Text:
    text = Text(answer.text)
    if lines is not None:
        text = Text("\n".join(answer.text.splitlines()[-lines:]))
    if answer.note:
        text.append(f"\n({answer.note})", style="dim")
    if answer.error is not None:
        text.append("\n(failed)", style="red")
    return text


def _show_in_turn(names: Sequence[str], answers: Sequence[Answer]) -> None:
    pause = Event()
    for name, answer in zip(names, answers, strict=True):
        sys.stdout.write(f"== {name}\n")
        shown = 0
        while True:
            done, text = answer.done, answer.text
            sys.stdout.write(text[shown:])
            sys.stdout.flush()
            shown = len(text)
            if done:
                break
            pause.wait(_SECONDS)
        sys.stdout.write(f"\n{f'({answer.note})' if answer.note else ''}\n")
        sys.stdout.flush()
