"""What to warn of when completions cannot be scored: not each of them, nor only the first."""

from __future__ import annotations

from collections.abc import Sequence

from .protocol import Graded


class ErrorsTold:
    def __init__(self, occasion: str) -> None:
        """`occasion`: begins the sentences, before the step's number."""
        self._occasion = occasion
        self._most: dict[str, int] = {}
        """By grader, the most completions of a step that were told of."""

    def sentences(self, step: int, graded: Sequence[Graded]) -> list[str]:
        """For each grader once, and again when at least twice as many are concerned."""
        by_grader: dict[str, list[str]] = {}
        for one in graded:
            for name, error in {text.partition(":")[0]: text for text in one.errors}.items():
                by_grader.setdefault(name, []).append(error)
        found = []
        for name, errors in by_grader.items():
            if len(errors) < 2 * self._most.get(name, 0):
                continue
            self._most[name] = len(errors)
            found.append(
                f"{self._occasion} {step}: {len(errors)} of {len(graded)} completions could not be "
                f"scored, and take no part. The first: {errors[0]}"
            )
        return found
