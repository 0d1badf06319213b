"""What was replaced and what stayed as it was, with the reason: told to the user and checked."""

from __future__ import annotations

from collections import Counter


class PatchReport:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Mechanism -> how many instances run ours."""
        self.stock: Counter[tuple[str, str]] = Counter()
        """(mechanism, reason) -> how many instances stayed stock."""

    def replaced(self, mechanism: str) -> None:
        self.counts[mechanism] += 1

    def stays_stock(self, mechanism: str, reason: str) -> None:
        self.stock[mechanism, reason] += 1

    def summary(self) -> str:
        ours = ", ".join(f"{count} x {name}" for name, count in sorted(self.counts.items()))
        stock = "; ".join(
            f"{count} x {name} stay stock: {reason}"
            for (name, reason), count in sorted(self.stock.items())
        )
        return "; ".join(part for part in (f"patched {ours or 'nothing'}", stock) if part)
