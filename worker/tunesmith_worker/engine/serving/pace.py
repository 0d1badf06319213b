"""Choose how many prompt tokens a step computes, so that new prompts only slightly delay the
requests that already generate tokens."""

from __future__ import annotations

ALONE = 512
"""Number of prompt tokens per step while no request generates tokens."""
_SMALLEST = 16
_WEIGHT = 0.1
"""Weight of the newest step in the running averages."""
_SHARE = 0.8
"""Maximum time that prompt tokens may add to a step, as a share of the mean time of a step without
prompt tokens."""


class Pace:
    """Running averages of step times."""

    def __init__(self) -> None:
        self._decode_seconds: float | None = None
        """Mean time of a step without prompt tokens."""
        self._token_seconds: float | None = None
        """Mean additional time of a step per prompt token."""

    def record(self, rows: int, prompt_tokens: int, seconds: float) -> None:
        if prompt_tokens == 0:
            self._decode_seconds = _mean(self._decode_seconds, seconds)
        elif rows == 0:
            self._token_seconds = _mean(self._token_seconds, seconds / prompt_tokens)
        elif self._decode_seconds is not None:
            more = max(seconds - self._decode_seconds, 0.0)
            self._token_seconds = _mean(self._token_seconds, more / prompt_tokens)

    def prompt_tokens(self, rows: int) -> int:
        """Return the maximum number of prompt tokens for a step in which `rows` requests generate a
        token."""
        if rows == 0:
            return ALONE
        if self._decode_seconds is None or not self._token_seconds:
            return _SMALLEST
        share = int(_SHARE * self._decode_seconds / self._token_seconds)
        return min(max(share, _SMALLEST), ALONE)


def _mean(before: float | None, value: float) -> float:
    return value if before is None else before + _WEIGHT * (value - before)
