"""What was replaced and what stayed as it was, with the reason: told to the user and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_BROUGHT_ALONG = "comes along: rows stand end to end"


class PatchReport:
    def __init__(self, asked: Iterable[str] = ()) -> None:
        """`asked`: the mechanisms that were named; others may come along with them."""
        self._asked = frozenset(asked)
        self.counts: Counter[str] = Counter()
        """Mechanism -> how many instances run ours."""
        self.unchanged: Counter[tuple[str, str]] = Counter()
        """(mechanism, reason) -> how many instances stayed stock."""

    def add_patched(self, mechanism: str) -> None:
        self.counts[mechanism] += 1

    def add_unchanged(self, mechanism: str, reason: str) -> None:
        self.unchanged[mechanism, reason] += 1

    def summary(self) -> str:
        ours = ", ".join(
            f"{count} x {name}{'' if name in self._asked else f' ({_BROUGHT_ALONG})'}"
            for name, count in sorted(self.counts.items())
        )
        stock = "; ".join(
            f"{count} x {name} stay stock: {reason}"
            for (name, reason), count in sorted(self.unchanged.items())
        )
        return "; ".join(part for part in (f"patched {ours or 'nothing'}", stock) if part)
