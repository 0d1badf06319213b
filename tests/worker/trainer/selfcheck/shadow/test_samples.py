"""Beyond its limits of time and memory, the comparison of a step takes a sample and says which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_result
from tests.worker.trainer.selfcheck.planted import failure, trained
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main
from tunesmith_worker.trainer.selfcheck.shadow import budget

from . import faults
from .faults import Plant
from .test_first_policy_step import make, scaled_loss
from .test_first_step import FOUR, FULL, ROWS

ONE: dict[str, Any] = {
    **FOUR,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
}
"""A step with a single micro-batch."""


def limit_time(patch: pytest.MonkeyPatch, share: float) -> None:
    """Allow plain torch a share of each remaining step's time; both runs have two steps."""
    patch.setattr(budget, "SECONDS", 0.0)
    patch.setattr(budget, "SHARE", share)


def limit_memory(patch: pytest.MonkeyPatch, free: int) -> None:
    patch.setattr(budget, "read_free_memory", lambda *_: SimpleNamespace(free=free))


def detail_of(run: Any) -> str:
    (detail,) = [d["first_step"] for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    return str(detail)


@pytest.mark.parametrize(
    ("recipe", "share", "words"),
    [
        (ONE, 0.3, " of 8 rows with "),
        ({**ONE, "lora": {"lora_dropout": 0.2}}, 0.3, "by the run's own code without dropout, "),
        (FOUR, 1.0, "a sample of 2 of 4 micro-batches, because the whole step would take more "),
        (FOUR, 1e-6, "a sample of 1 of 8 rows with 16 of "),
    ],
    ids=["one micro-batch", "dropout", "micro-batches", "few tokens"],
)
def test_a_step_beyond_the_time_is_compared_in_part(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    recipe: dict[str, Any],
    share: float,
    words: str,
) -> None:
    limit_time(monkeypatch, share)
    run = make_run(ROWS, recipe=recipe)
    trained(run, lambda trainer: None)
    assert read_result(run).error is None
    assert words in detail_of(run)
    assert detail_of(run).startswith("a sample of ")
    assert "because the whole step would take more than " in detail_of(run)


@pytest.mark.parametrize(
    ("plant", "recipe", "share", "words"),
    [
        (faults.doubled_normaliser, ONE, 0.3, "wrong normaliser: the gradient is 0.5 times"),
        (faults.lost_gradient, FOUR, 1.0, "micro-batch 1 of 2 is missing in the gradient"),
    ],
    ids=["rows", "micro-batches"],
)
def test_a_sample_shows_a_fault(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    recipe: dict[str, Any],
    share: float,
    words: str,
) -> None:
    limit_time(monkeypatch, share)
    assert words in failure(make_run(ROWS, recipe=recipe), plant).message


def test_a_step_beyond_the_memory_is_compared_in_some_tensors_and_rows(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 2_400_000)
    run = make_run(ROWS, recipe=FULL)
    trained(run, lambda trainer: None)
    assert read_result(run).error is None
    assert "a sample of " in detail_of(run)
    assert "by the run's own code, because the whole step needs " in detail_of(run)
    assert "gradient of a sample of " in detail_of(run)
    limit_memory(monkeypatch, 1 << 10)
    run = make_run(ROWS, recipe=FULL, name="none")
    trained(run, lambda trainer: None)
    assert detail_of(run).startswith("loss and gradient were not compared: the whole step needs ")


def test_a_reinforcement_step_beyond_the_time_is_compared_in_part(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_time(monkeypatch, 0.3)
    run = make(make_run, {"grpo": {"beta": 0.1}, "lora": {"r": 4, "lora_dropout": 0.2}})
    assert main(run) == 0, read_result(run).error
    assert "a sample of " in detail_of(run)
    assert " of 6 completions with a gradient, with " in detail_of(run)
    assert "repeated by the run's own code without dropout, because " in detail_of(run)
    scaled_loss(0.5)(monkeypatch)
    run = make(make_run, {}, name="wrong")
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert "first_step: wrong normaliser: the gradient is 0.5 times" in error.message


def test_a_reinforcement_step_beyond_the_memory_says_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 1 << 10)
    run = make(make_run, {})
    assert main(run) == 0, read_result(run).error
    assert "; loss and gradient were not compared: the whole step needs " in detail_of(run)


@pytest.mark.parametrize(
    ("sizes", "most", "chosen"),
    [
        ([5, 5, 5, 5], 20, [0, 1, 2, 3]),
        ([5, 5, 5, 5], 10, [0, 2]),
        ([9, 1, 9, 1], 5, [1]),
        ([3], 2, [0]),
    ],
)
def test_a_sample_is_evenly_spaced(sizes: list[int], most: int, chosen: list[int]) -> None:
    assert budget.evenly_spaced(sizes, most) == chosen
