"""Log-probs of the tokens of a prompt, collected while the prompt is computed part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .protocol import TokenLogprob, TokenScores

_POSITIONS = 64
"""Number of positions whose logits are in memory at the same time."""


class PromptScores:
    """Scores of the prompt's tokens, except the first, which no token predicts."""

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        """`top`: number of most likely tokens to report per token."""
        self._prompt, self._top = prompt, top
        self.found: list[TokenScores] = []

    def add(self, logits_of: Callable[[slice], torch.Tensor], start: int, count: int) -> None:
        """Add the scores of the tokens that the positions `start` to `start + count - 1` predict.

        `logits_of` returns the logits [n, V] in fp32 of a slice of these positions. Call this
        method with increasing positions. Positions are skipped if their score is already known, or
        if they predict a generated token.
        """
        first = len(self.found) - start
        last = min(count, len(self._prompt) - 1 - start)
        for begin in range(first, last, _POSITIONS):
            part = slice(begin, min(begin + _POSITIONS, last))
            self._add(logits_of(part).log_softmax(-1), start + begin)

    def _add(self, log_probs: torch.Tensor, start: int) -> None:
        targets = self._prompt[start + 1 : start + 1 + len(log_probs)]
        index = torch.tensor(targets, device=log_probs.device)[:, None]
        values = log_probs.gather(1, index)[:, 0].tolist()
        tops: list[tuple[TokenLogprob, ...]] = [()] * len(targets)
        if self._top:
            best = log_probs.topk(min(self._top, log_probs.shape[1]), -1)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            tops = [tuple(map(TokenLogprob, ids, found)) for ids, found in pairs]
        for token, value, top in zip(targets, values, tops, strict=True):
            self.found.append(TokenScores(TokenLogprob(token, value), top))
