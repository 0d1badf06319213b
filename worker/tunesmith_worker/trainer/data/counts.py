"""What became of the rows of a file, and the words in which the user is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(kw_only=True)
class Counts:
    rows: int = 0
    kept: int = 0
    """Rows with at least one example."""
    dropped_too_long: int = 0
    """Rows of which no example fits."""
    dropped_untrainable: int = 0
    """Rows without a token that carries loss."""
    truncated: int = 0
    """Examples cut to the longest allowed length."""
    examples: int = 0
    """More than `kept` when the chat template rewrites earlier turns."""
    examples_too_long: int = 0
    turns_left_out: int = 0
    """Assistant turns whose place in the template's text cannot be proven."""
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    """Tokens of the longest example that was kept."""
    endless: int = 0
    """Examples whose last trained token is not a special one: they do not teach to stop."""

    def add(self, other: Counts) -> None:
        """Take in the counts of further rows."""
        longest = max(self.longest, other.longest)
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.longest = longest

    def as_data(self) -> dict[str, Any]:  # Any: JSON; all are integers
        return asdict(self)

    def summary(self, name: str) -> str:
        return (
            f"{name}: {self.rows} rows gave {self.examples} examples with {self.tokens} tokens, "
            f"{self.trained_tokens} of them trained; the longest has {self.longest}"
        )

    def losses(self, name: str, max_seq_length: int) -> Iterator[str]:
        """A sentence for each thing that is not as the user may think."""
        if self.dropped_too_long:
            yield (
                f"{name}: {self.dropped_too_long} of {self.rows} rows dropped, longer than "
                f"max_seq_length={max_seq_length}"
            )
        if self.examples_too_long > self.dropped_too_long:
            yield (
                f"{name}: {self.examples_too_long} examples dropped, longer than "
                f"max_seq_length={max_seq_length}; some of their rows gave others that fit"
            )
        if self.truncated:
            yield f"{name}: {self.truncated} examples cut to max_seq_length={max_seq_length}"
        if self.dropped_untrainable:
            yield f"{name}: {self.dropped_untrainable} rows dropped, no token to train on"
        if self.turns_left_out:
            yield (
                f"{name}: {self.turns_left_out} assistant turns not trained, as the chat template "
                "does not show where they stand"
            )
        if self.endless:
            yield (
                f"{name}: {self.endless} examples do not end in a special token: the model may "
                "not learn to stop"
            )
