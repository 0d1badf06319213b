"""Device that answers requests. Training jobs come first: chat takes no GPU of trainers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

_NICENESS = 10
"""Priority of chat on a CPU: trainers on the same cores come first."""


@dataclass(frozen=True)
class Device:
    torch: torch.device
    waiting_for: str | None = None
    """Reason why no request can be answered; None if requests can be answered."""

    @property
    def is_gpu(self) -> bool:
        return self.torch.type == "cuda"


def choose_device(choice: Literal["auto", "cpu", "cuda"]) -> Device:
    """Choose the device. Trainers use the first visible GPU, so chat takes the second."""
    gpus = torch.cuda.device_count()
    if choice == "cpu" or (choice == "auto" and not gpus):
        os.nice(_NICENESS)
        return Device(torch.device("cpu"))
    if choice == "cuda" and not gpus:
        return Device(
            torch.device("cpu"), "TUNESMITH_INFERENCE_DEVICE is cuda, but no GPU is found"
        )
    if gpus > 1:
        return Device(torch.device("cuda", 1))
    if choice == "cuda":
        return Device(torch.device("cuda", 0))
    return Device(
        torch.device("cpu"),
        "the only GPU is reserved for training jobs; set TUNESMITH_INFERENCE_DEVICE to cuda to "
        "share it, or to cpu to answer on the CPU",
    )
