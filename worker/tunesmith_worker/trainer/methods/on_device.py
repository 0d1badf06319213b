"""A micro-batch on its way to the device, without the host waiting for it.

From pageable memory, or by a plain `.to(device)`, a copy waits until the device has done all that
was launched before it; from pinned memory and non-blocking it does not.
"""

from __future__ import annotations

from typing import Any

import torch

from tunesmith_worker.engine.patches.batch_layout import BatchLayout
from tunesmith_worker.trainer.data.tokens import IGNORED

from .batches import Batch

LAYOUT = "layout"
"""The batch's key for its BatchLayout, which is the trainer's and no model's."""


def on_device(batch: Batch, device: torch.device) -> Batch:
    """A batch of the host's, on `device` with its layout."""
    cumulative = batch.get("cu_seq_lens_q")
    labelled = (batch["labels"][:, 1:] != IGNORED).flatten().nonzero()[:, 0]
    layout = BatchLayout(
        bounds=None if cumulative is None else tuple(cumulative.tolist()),
        labelled=sent(labelled, device),
    )
    return {**{name: sent(value, device) for name, value in batch.items()}, LAYOUT: layout}


def sent(value: Any, device: torch.device) -> Any:  # Any: tensors, and numbers, which stay
    if not isinstance(value, torch.Tensor) or device.type != "cuda":
        return value.to(device) if isinstance(value, torch.Tensor) else value
    return value.pin_memory().to(device, non_blocking=True)
