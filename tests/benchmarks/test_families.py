"""benchmarks/families.py: which families are measured, and how its bars are judged."""

from __future__ import annotations

import math
from typing import Any

import pytest
from benchmarks.families import FAMILIES, judged, main, summary
from benchmarks.models.page import read_rows


def run(speed: float, *losses: float) -> dict[str, Any]:  # Any: JSON
    return {
        "tokens_per_cpu_second": speed,
        "losses": list(losses),
        "patched": "patched 1 x loss",
    }


def test_every_measured_family_is_on_the_fast_path() -> None:
    states = {row["model_type"]: row["lora"]["state"] for row in read_rows() if "lora" in row}
    assert {states[name] for name in FAMILIES} == {"fast"}


def test_the_median_of_the_rounds_counts_for_speed_and_the_worst_for_losses() -> None:
    ours = [run(300.0, 2.0, 1.0), run(900.0, 2.0, 1.0), run(500.0, 2.0, 1.1)]
    family = judged("glm", ours, [run(200.0, 2.0, 1.0)] * 3)
    assert family["speed_ratio"] == 2.5
    assert family["speed_ratios"] == [1.5, 4.5, 2.5]
    assert family["loss_difference"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("speeds", "loss", "within"),
    [
        ([2.0] * 5 + [1.0], 1e-5, True),
        ([2.0] * 4 + [1.99] * 2, 0.0, False),
        ([3.0] * 6, 2e-5, False),
        ([3.0] * 6, math.inf, False),
    ],
)
def test_the_bars_are_five_fast_families_and_equal_losses(
    speeds: list[float], loss: float, within: bool
) -> None:
    families = [
        {"model_type": str(place), "speed_ratio": speed, "loss_difference": loss, "commit": "1"}
        for place, speed in enumerate(speeds)
    ]
    assert summary(families, 0.0)["within_bars"] is within


def test_a_family_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a bound well below the bar, which a busy machine passes."""
    command = ["families", "--only", "glm4", "--rounds", "1", "--steps", "3"]
    monkeypatch.setattr("sys.argv", command)
    monkeypatch.setattr("benchmarks.families.SPEED", 1.3)
    assert main() == 0, capsys.readouterr().err
    assert '"patched": "patched 4 x attention_block, 1 x loss, 4 x mlp_block"' in (
        capsys.readouterr().out
    )
