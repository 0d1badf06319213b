"""Device that answers requests. Training jobs have priority: chat uses no GPU that trainers use."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch

from tunesmith_worker.rundir.device_use import gpu_name

Choice = Literal["auto", "cpu", "cuda"]

_NICENESS = 10
"""Niceness of the chat process on a CPU, which gives trainers on the same cores priority."""
_REMEDY = "set TUNESMITH_INFERENCE_DEVICE to cuda to share a GPU, or to cpu to answer on the CPU"


@dataclass(frozen=True)
class Device:
    torch: torch.device
    waiting_for: str | None = None
    """Reason why no request can be answered; None if requests can be answered."""
    gpu: str | None = None
    """UUID of the GPU."""

    @property
    def is_gpu(self) -> bool:
        return self.torch.type == "cuda"


def choose_device(choice: Choice, reserved: Collection[str] = ()) -> Device:
    """Choose the device. `reserved`: UUIDs of the GPUs that belong to workers and trainers.

    Chat uses a GPU that is not reserved. If no GPU is reserved, chat skips the first GPU: a worker
    that starts later uses the first GPU. If no GPU remains, the choice `cuda` takes the first GPU,
    and the choice `auto` takes none."""
    gpus = torch.cuda.device_count()
    if choice == "cpu" or (choice == "auto" and not gpus):
        return Device(torch.device("cpu"))
    if not gpus:
        return Device(
            torch.device("cpu"), "TUNESMITH_INFERENCE_DEVICE is cuda, but no GPU is found"
        )
    names = [gpu_name(torch.cuda.get_device_properties(i).uuid) for i in range(gpus)]
    candidates = range(gpus) if set(reserved) & set(names) else range(1, gpus)
    free = [i for i in candidates if names[i] not in reserved]
    if free or choice == "cuda":
        index = free[0] if free else 0
        return Device(torch.device("cuda", index), gpu=names[index])
    what = "the only GPU is" if gpus == 1 else f"all {gpus} GPUs are"
    return Device(torch.device("cpu"), f"{what} reserved for training jobs; {_REMEDY}")


def yield_cores(device: Device) -> None:
    """Lower this process's priority if chat answers on a CPU."""
    if not device.is_gpu and device.waiting_for is None:
        os.nice(_NICENESS)
