"""Report of patched modules, and of unchanged modules with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_IMPLIED = "required for packed rows"


class PatchReport:
    def __init__(self, requested: Iterable[str] = ()) -> None:
        """`requested`: patches that the caller asked for. A requested patch may require other
        patches."""
        self._requested = frozenset(requested)
        self.counts: Counter[str] = Counter()
        """Number of patched modules of each patch; the keys are patch names."""
        self.unchanged: Counter[tuple[str, str]] = Counter()
        """Number of unchanged modules; the keys are pairs of patch name and reason."""

    def add_patched(self, mechanism: str) -> None:
        self.counts[mechanism] += 1

    def add_unchanged(self, mechanism: str, reason: str) -> None:
        self.unchanged[mechanism, reason] += 1

    def summary(self) -> str:
        patched = ", ".join(
            f"{count} x {name}{'' if name in self._requested else f' ({_IMPLIED})'}"
            for name, count in sorted(self.counts.items())
        )
        unchanged = ", ".join(
            f"{count} x {name} ({reason})"
            for (name, reason), count in sorted(self.unchanged.items())
        )
        summary = f"patched {patched or 'nothing'}"
        return f"{summary}; left unchanged: {unchanged}" if unchanged else summary
