"""Loss and gradient of a supervised step in plain torch on the stock modules.

This computation shares no code with the trainer: it pads, masks, normalises and sums by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_worker.trainer.data.tokens import IGNORED

from .fed_rows import FedRow

Untyped = Any  # Any: transformers is not typed

GROUP_TOKENS = 1024
"""Maximum tokens of a padded group of rows, unless a single row has more."""
PADDING = 1.15
"""Maximum ratio of a group's padded tokens to its tokens."""
GROUP_LOGITS = 1 << 26
"""Maximum number of logits of a group, unless a single row has more."""


@dataclass(frozen=True, kw_only=True)
class ExpectedStep:
    loss: float
    gradients: dict[str, torch.Tensor]
    """Gradients before clipping, in fp32, by parameter name."""
    norm: float
    """L2 norm of all gradients together."""


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
    """Return the L2 norm of all gradients together."""
    if not gradients:
        return 0.0
    norms = [torch.linalg.vector_norm(g.float()) for g in gradients.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def supervised_step(
    model: Untyped, rows: Sequence[FedRow], labelled: int, device: torch.device
) -> ExpectedStep:
    """Return loss and gradient of `rows`: the sum of -log p over all labels, divided by `labelled`.

    `model`: stock modules in eval mode, without gradients. `labelled`: number of labelled tokens in
    the whole optimiser step, over all micro-batches."""
    gradients, total = GradientSum(model), 0.0
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 1))
    for group in _groups(rows, GROUP_LOGITS // vocabulary):
        with torch.enable_grad():
            loss = _negative_log_likelihood(model, group, device) / labelled
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        gradients.take()
        total += float(loss.detach())
    return gradients.result(total)


def _negative_log_likelihood(
    model: Untyped, rows: Sequence[FedRow], device: torch.device
) -> torch.Tensor:
    """Return the sum of -log p over the labels of some rows, padded on the right."""
    width = max(len(row.ids) for row in rows)
    ids, mask, labels = torch.zeros(3, len(rows), width, dtype=torch.int64, device=device)
    labels.fill_(IGNORED)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
        mask[place, : len(row.ids)] = 1
        labels[place, 1 : len(row.ids)] = torch.tensor(row.labels[1:])
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    predicted = labels[:, 1:] != IGNORED
    log_probs = logits[:, :-1][predicted].float().log_softmax(-1)
    return -log_probs.gather(1, labels[:, 1:][predicted][:, None]).sum()


def _groups(rows: Sequence[FedRow], most: int) -> list[list[FedRow]]:
    """Group rows of similar length; `most`: maximum padded tokens because of the logits."""
    limit, groups = min(GROUP_TOKENS, most), list[list[FedRow]]()
    ordered = sorted((row for row in rows if row.labelled), key=lambda row: -len(row.ids))
    for row in ordered:
        if groups:
            group = groups[-1]
            padded = len(group[0].ids) * (len(group) + 1)
            tokens = sum(len(one.ids) for one in group) + len(row.ids)
            if padded <= limit and padded <= PADDING * tokens:
                group.append(row)
                continue
        groups.append([row])
    return groups
