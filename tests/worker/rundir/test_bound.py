"""What bounds a run, and whether more rows would help: by planted figures."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tunesmith_schema import BoundBy
from tunesmith_worker.rundir.advice.bound import PARTS, find_bound
from tunesmith_worker.trainer.report.batches import Fit, saturation_of

from .reports import GPU, planned, report, rollouts

FULL = GPU.model_copy(update={"reserved": 135 * 2**30})
PLANTED: dict[BoundBy, dict[str, Any]] = {
    BoundBy.DEVICE_COMPUTE: {},
    BoundBy.STARTUP: {"phases": {"load": 200.0}},
    BoundBy.DATA: {"phases": {"data_wait": 200.0}},
    BoundBy.GENERATION: {"phases": {"sync": 10.0, "generate": 95.0}},
    BoundBy.GRADING: {"phases": {"grade": 200.0}},
    BoundBy.EVALUATION: {"phases": {"evaluation": 200.0}},
    BoundBy.CHECKPOINTING: {"phases": {"checkpointing": 60.0, "upload": 60.0}},
    BoundBy.HOST: {"device_waits_share": 0.9, "peak_memory": GPU},
    BoundBy.MEMORY: {"choices": planned(fits=False), "settings": {"gradient_checkpointing": True}},
    BoundBy.UNKNOWN: {"phases": {"other": 200.0}},
}


@pytest.mark.parametrize("by", BoundBy)
def test_what_bounds_a_run_is_told_from_its_figures(by: BoundBy) -> None:
    assert find_bound(report(**PLANTED[by])).by is by


def test_a_run_that_generates_most_of_the_time_is_told_how_fast() -> None:
    found = find_bound(report(phases={"generate": 150.0}, rollouts=rollouts()))
    assert found.by is BoundBy.GENERATION
    assert "generating completions: 150.0 of 248.0 s" in found.text
    assert "12,800 completions, 50 tokens each at 6,400 tokens/s" in found.text


def test_passes_of_the_reference_model_are_the_device_s() -> None:
    assert find_bound(report(phases={"log_probs": 200.0})).by is BoundBy.DEVICE_COMPUTE


def test_the_trainer_s_own_loop_is_the_host_s() -> None:
    assert find_bound(report(phases={"train": 200.0})).by is BoundBy.HOST


def test_a_full_gpu_whose_plan_keeps_all_computes() -> None:
    """Much of what is reserved may be free: what was planned counts."""
    full = report(peak_memory=FULL, choices=planned(fits=True))
    assert find_bound(full).by is BoundBy.DEVICE_COMPUTE


def test_the_words_carry_the_figures() -> None:
    assert "204.0 of 298.0 s" in find_bound(report(phases={"load": 200.0})).text


def test_no_phase_speaks_for_two_bounds() -> None:
    phases = [phase for _, members, _ in PARTS for phase in members]
    assert len(phases) == len(set(phases))


def fit_of(fixed: float, rate: float, noise: float = 0.0, spread: int = 400) -> Fit:
    random.seed(1)
    fit = Fit()
    for _ in range(200):
        slots = 500 + random.randint(-spread, spread)
        fit.add(slots, fixed + rate * slots + random.gauss(0, noise))
    return fit


def test_a_device_whose_time_grows_with_the_rows_is_saturated() -> None:
    found = saturation_of(fit_of(0.0002, 1e-4, 0.0005), device="GPU", waits=0.0)
    assert found.state == "saturated"
    assert "GPU is already saturated; more rows would only add memory" in found.text
    assert re.search(r"\), \S+ ± \S+ ms do not depend on its size$", found.text), found.text


def test_a_fixed_cost_is_what_twice_the_rows_would_save() -> None:
    found = saturation_of(fit_of(0.05, 1e-4, 0.001), device="CPU", waits=None)
    assert found.state == "not_saturated"
    # 100 ms become 150 ms for twice the tokens.
    assert found.doubling_gain == pytest.approx(200 / 150 - 1, abs=0.03)


@pytest.mark.parametrize(
    ("fit", "why"),
    [
        (Fit(), "0 micro-batches"),
        (fit_of(0.05, 1e-4, spread=5), "about 500 token positions"),
        (fit_of(0.003, 1e-4, noise=0.05), "vary too much"),
    ],
)
def test_what_was_not_measured_is_called_so(fit: Fit, why: str) -> None:
    found = saturation_of(fit, device="CPU", waits=None)
    assert (found.state, found.doubling_gain) == ("not_measured", None)
    assert "not measured" in found.text
    assert why in found.text


def test_larger_batches_that_took_no_longer_are_no_line() -> None:
    found = saturation_of(fit_of(0.6, -1e-4, noise=0.01), device="CPU", waits=None)
    assert (found.state, found.doubling_gain) == ("not_measured", None)
    assert "vary too much" in found.text


def test_no_time_is_negative() -> None:
    fit = fit_of(-0.02, 1e-4, noise=0.001)
    assert fit.fixed_seconds()[0] < 0, "the line through what was measured"
    text = saturation_of(fit, device="CPU", waits=None).text
    assert "at most 0.0 ms do not depend on its size" in text


def test_equal_batches_on_a_gpu_that_waits_leave_room_for_more_rows() -> None:
    found = saturation_of(fit_of(0.05, 1e-4, spread=5), device="GPU", waits=0.9)
    assert (found.state, found.doubling_gain) == ("not_saturated", None)
