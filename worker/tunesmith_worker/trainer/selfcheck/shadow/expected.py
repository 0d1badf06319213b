"""Loss and gradient of a step in plain torch on the stock modules.

The module has its own padding, masks, normalisation and sums, and shares no code with the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_worker.trainer.data.tokens import IGNORED

from .fed_rows import FedRow

Untyped = Any  # Any: transformers is not typed

RowLoss = Callable[[int, torch.Tensor], torch.Tensor]
"""Function that takes a row's index and the row's label log-probs [labels], and returns the row's
part of the loss."""
GROUP_TOKENS = 1024
"""Maximum tokens of a padded group of rows, unless a single row has more."""
PADDING = 1.15
"""Maximum ratio of token positions, padding included, to tokens in a padded group of rows."""
GROUP_LOGITS = 1 << 26
"""Maximum number of logits of a group, unless a single row has more."""


@dataclass(frozen=True, kw_only=True)
class ExpectedStep:
    loss: float
    gradients: dict[str, torch.Tensor]
    """Gradients before clipping, in fp32; the keys are parameter names."""
    norm: float
    """L2 norm of the gradients of all tensors as one vector."""


class GradientSum:
    """Sum of gradients in fp32 over several backward passes."""

    def __init__(self, model: Untyped) -> None:
        self._named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._sums: dict[str, torch.Tensor] = {}

    def take(self) -> None:
        """Add the model's gradients to the sum, and remove them from the model."""
        for name, parameter in self._named:
            grad, parameter.grad = parameter.grad, None
            if grad is None:
                continue
            if name in self._sums:
                self._sums[name] += grad
            else:
                self._sums[name] = grad.float()

    def result(self, loss: float) -> ExpectedStep:
        return ExpectedStep(loss=loss, gradients=self._sums, norm=norm_of(self._sums))


def norm_of(gradients: dict[str, torch.Tensor]) -> float:
    """Return the L2 norm of the gradients of all tensors as one vector."""
    if not gradients:
        return 0.0
    norms = [torch.linalg.vector_norm(g.float()) for g in gradients.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def expected_step(
    model: Untyped,
    rows: Sequence[FedRow],
    row_loss: RowLoss,
    device: torch.device,
    temperature: float = 1.0,
    group_tokens: int = GROUP_TOKENS,
) -> ExpectedStep:
    """Return the sum of all rows' losses, and its gradient.

    `model`: stock modules in eval mode, without gradients. Rows without labels are left out.
    `group_tokens`: maximum tokens of a forward pass, unless a single row has more."""
    gradients, total = GradientSum(model), 0.0
    for group in _groups(model, rows, group_tokens):
        with torch.enable_grad():
            scores = _log_probs(model, [rows[place] for place in group], device, temperature)
            parts = [row_loss(place, row) for place, row in zip(group, scores, strict=True)]
            loss = torch.stack(parts).sum()
        if loss.requires_grad:
            loss.backward()
        gradients.take()
        total += float(loss.detach())
    return gradients.result(total)


@torch.no_grad()
def label_log_probs(
    model: Untyped, rows: Sequence[FedRow], device: torch.device, temperature: float = 1.0
) -> dict[int, torch.Tensor]:
    """Return the log-probs of each row's labels; the keys are row indices.

    Rows without labels are left out.
    """
    result: dict[int, torch.Tensor] = {}
    for group in _groups(model, rows):
        scores = _log_probs(model, [rows[place] for place in group], device, temperature)
        result |= dict(zip(group, scores, strict=True))
    return result


def _log_probs(
    model: Untyped, rows: Sequence[FedRow], device: torch.device, temperature: float
) -> list[torch.Tensor]:
    """Return the labels' log-probs of each row, fp32 [labels]. Rows are padded on the right."""
    width = max(len(row.ids) for row in rows)
    ids, mask, labels = torch.zeros(3, len(rows), width, dtype=torch.int64, device=device)
    labels.fill_(IGNORED)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
        mask[place, : len(row.ids)] = 1
        labels[place, 1 : len(row.ids)] = torch.tensor(row.labels[1:])
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    predicted = labels[:, 1:] != IGNORED
    log_probs = (logits[:, :-1][predicted].float() / temperature).log_softmax(-1)
    chosen = log_probs.gather(1, labels[:, 1:][predicted][:, None])[:, 0]
    return list(chosen.split([row.labelled for row in rows]))


def _groups(model: Untyped, rows: Sequence[FedRow], tokens: int = GROUP_TOKENS) -> list[list[int]]:
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 1))
    limit = min(tokens, GROUP_LOGITS // vocabulary)
    groups: list[list[int]] = []
    places = [place for place, row in enumerate(rows) if row.labelled]
    for place in sorted(places, key=lambda i: -len(rows[i].ids)):
        if groups:
            group = groups[-1]
            padded = len(rows[group[0]].ids) * (len(group) + 1)
            tokens = sum(len(rows[i].ids) for i in group) + len(rows[place].ids)
            if padded <= limit and padded <= PADDING * tokens:
                group.append(place)
                continue
        groups.append([place])
    return groups
