"""Out of memory in an evaluation: the batch is taken again in smaller parts, and so are those after
it. Its loss is a sum over tokens, so that parts change nothing but the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import RunError, is_out_of_memory

from .retry import first_line, free_memory

T = TypeVar("T")


class EvaluationMemory:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.parts = 1
        """Into how many an evaluation's batches are split."""

    def run(self, evaluate: Callable[[int], T], *, rows: int, restore: Callable[[], None]) -> T:
        """`evaluate` takes a batch of `rows` rows in so many parts; `restore` undoes what it has
        counted before it failed. Raises RunError where one row at a time does not fit."""
        while True:
            found = self._tried(evaluate)
            if not isinstance(found, _Failure):
                return found
            # The exception is gone, and with it all that its frames held.
            free_memory()
            restore()
            if self.parts >= rows:
                raise RunError(
                    ErrorCode.OUT_OF_MEMORY,
                    f"Out of memory in an evaluation with one row at a time: {found.text}",
                    category=ErrorCategory.OUT_OF_MEMORY,
                    hint="Leave out the validation file's longest rows, or set a lower "
                    "recipe.max_seq_length.",
                )
            self.parts = min(rows, 2 * self.parts)
            self._tell(
                f"Out of memory in an evaluation ({found.text}): its batches are taken in "
                f"{self.parts} parts. Its loss stays that of the whole file."
            )

    def _tried(self, evaluate: Callable[[int], T]) -> T | _Failure:
        try:
            return evaluate(self.parts)
        except Exception as error:  # out of memory comes as many types; others go on
            if not is_out_of_memory(error):
                raise
            return _Failure(first_line(error))


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text
