"""Comparisons of saved weights with probe.safetensors, which holds logits and checksums of the
trained model. A difference raises ResultMismatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tunesmith_worker.engine.scientific import scientific

_SHOWN = 3


class ResultMismatch(Exception):
    """Raised if the saved files differ from the model at the time of saving. The message names the
    difference."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Largest difference between the logits of the loaded and the trained model, and the largest
    difference that rounding can cause."""

    max_difference: float
    tolerance: float
    rows: list[list[int]]
    """Token sequences of the probe."""

    def summary(self) -> str:
        return (
            "the logits of the model loaded from disk and of the trained model differ by at most "
            f"{scientific(self.max_difference)} (tolerance {self.tolerance:.1e})"
        )


def compare_logits(actual: torch.Tensor, recorded: torch.Tensor, tolerance: float) -> float:
    """Compare logits [B, n, V] with the recorded logits and return the largest difference."""
    if actual.shape != recorded.shape:
        raise ResultMismatch(
            f"the saved model's logits have the shape {list(actual.shape)}, but the trained "
            f"model's logits had the shape {list(recorded.shape)}"
        )
    difference = float((actual.double() - recorded.double()).abs().max())
    if not difference <= tolerance:  # NaN is a mismatch too
        raise ResultMismatch(
            f"the logits of the saved and the trained model differ by {difference:.1e} (tolerance "
            f"{tolerance:.1e})"
        )
    return difference


def compare_checksums(trained: Mapping[str, str], saved: Mapping[str, str], where: str) -> None:
    """Check that the file has each trained tensor under its name, bit for bit.

    `trained`, `saved`: checksums, keyed by the tensor's name in the saved file."""
    lost = [name for name, checksum in trained.items() if saved.get(name) != checksum]
    if not lost:
        return
    present = set(saved.values())
    moved = sum(trained[name] in present for name in lost)
    raise ResultMismatch(
        f"{where} does not contain the trained values of {len(lost)} of {len(trained)} tensors "
        f"(tolerance: 0): {_some(lost)}"
        + (
            f"; the values of {moved} of these tensors are stored under other names"
            if moved
            else ""
        )
    )


def compare_scaling(actual: Mapping[str, float], recorded: Mapping[str, float]) -> None:
    """Check that the saved adapter has LoRA on the trained layers, with the recorded scaling."""
    if missing := sorted(recorded.keys() ^ actual.keys()):
        raise ResultMismatch(
            "adapter_config.json and the trained model have LoRA on different layers: "
            f"{_some(missing)}"
        )
    other = [name for name, value in recorded.items() if actual[name] != value]
    if other:
        name = other[0]
        raise ResultMismatch(
            f"adapter_config.json scales LoRA wrongly in {len(other)} of {len(recorded)} layers: "
            f"by {actual[name]:g} instead of {recorded[name]:g} in {name}"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
