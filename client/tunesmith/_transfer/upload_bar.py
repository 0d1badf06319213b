"""Progress bar of one upload."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class UploadBar:
    """Progress bar on stderr, drawn only in a terminal or a notebook."""

    def __init__(self, filename: str, size: int, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not (console.is_terminal or console.is_jupyter),
        )
        plain = "".join(letter for letter in filename if letter.isprintable())
        self._task = self._progress.add_task(plain[:40], total=size)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, done: int) -> None:
        """Show the number of bytes sent so far; the number decreases when a part is repeated."""
        self._progress.update(self._task, completed=done)
