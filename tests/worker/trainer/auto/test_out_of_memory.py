"""Memory that runs out outside of forward and backward: for the optimiser's state, and in an
evaluation. The device is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, losses, read_events, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.engine.optimizers import fresh_state
from tunesmith_worker.engine.optimizers.eight_bit import StochasticAdamW
from tunesmith_worker.engine.optimizers.fresh_state import make_state, state_bytes
from tunesmith_worker.engine.optimizers.split_master import SplitMasterAdamW
from tunesmith_worker.trainer.methods.sft import SFTTrainer
from tunesmith_worker.trainer.run import main

from .test_memory_plan import RECIPE, ROWS, Device, adapter, assert_same_training, chosen

Untyped = Any  # Any: a run's parts
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
VALID = [{"question": f"What is {i}?", "answer": str(i) * (1 + i % 4)} for i in range(10)]


def _parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(70, 64), (5,), (64, 70)]
    return [torch.nn.Parameter(torch.randn(s, dtype=torch.bfloat16)) for s in shapes]


def _optimizer(kind: str) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    given = _parameters()
    groups: list[dict[str, Any]] = [  # Any: torch's groups
        {"params": given[:2], "weight_decay": 0.1},
        {"params": given[2:]},
    ]
    if kind == "error words":
        return given, SplitMasterAdamW(groups, lr=1e-2)
    if kind == "8 bits":
        return given, StochasticAdamW(groups, lr=1e-2, seed=3)
    return given, torch.optim.AdamW(groups, lr=1e-2, fused=kind == "fused")


@pytest.mark.parametrize("kind", ["fused", "plain", "error words", "8 bits"])
def test_a_state_that_is_made_first_changes_no_bit(kind: str) -> None:
    found = []
    for made_first in (True, False):
        parameters, optimizer = _optimizer(kind)
        if made_first:
            make_state(optimizer)
            assert state_bytes(optimizer) > 0
        for step in range(3):
            for parameter in parameters:
                generator = torch.Generator().manual_seed(step)
                parameter.grad = torch.randn(parameter.shape, generator=generator).bfloat16()
            optimizer.step()
        found.append((parameters, optimizer.state_dict()))
    (ours, our_state), (torchs, its_state) = found
    assert all(map(torch.equal, ours, torchs))
    assert our_state["param_groups"] == its_state["param_groups"]
    for number, its in its_state["state"].items():
        assert our_state["state"][number].keys() == its.keys()
        for name, value in its.items():
            one = our_state["state"][number][name]
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(value))
            assert getattr(one, "dtype", int) == getattr(value, "dtype", int)


def test_half_a_state_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, calls = fresh_state._adamw, []

    def second_fails(*given: Untyped) -> Untyped:
        calls.append(1)
        if len(calls) == 2:
            raise FULL
        return stock(*given)

    monkeypatch.setattr(fresh_state, "_adamw", second_fails)
    _, optimizer = _optimizer("fused")
    with pytest.raises(torch.OutOfMemoryError):
        make_state(optimizer)
    assert not any(optimizer.state.values())
    make_state(optimizer)
    assert len(optimizer.state) == 3


def test_what_does_not_fit_beside_the_optimisers_state_shows_before_an_update(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card where layers can keep their activations only until the state is there."""
    expected = make_run(ROWS, recipe=RECIPE, name="expected")
    assert main(expected) == 0
    state: list[Untyped] = []
    stock = fresh_state.make_state

    def made(optimizer: Untyped) -> None:
        stock(optimizer)
        state.append(optimizer)

    monkeypatch.setattr("tunesmith_worker.engine.memory.retry.make_state", made)
    device = Device(monkeypatch, lambda d: bool(state) and d.keeps)
    run = make_run(ROWS, recipe=RECIPE)
    assert main(run) == 0
    assert device.failures == 2  # two layers keep, then one, then none
    assert_same_training(run, expected, rel=1e-6)
    (first, *_) = [e.source_seq for e in read_events(run) if e.kind == EventKind.METRICS]
    warnings = [event for event in read_events(run) if event.level == "warn"]
    assert [event.source_seq < first for event in warnings] == [True, True]
    assert "The batch and the optimiser are unchanged" in warnings[0].message
    assert chosen(run)["keep"] == 0


def test_a_state_that_fits_at_the_second_try_costs_nothing(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = make_run(ROWS, recipe=RECIPE, name="expected")
    assert main(expected) == 0
    stock, calls = fresh_state._adamw, []

    def once(parameter: torch.Tensor, group: Untyped) -> Untyped:
        calls.extend([1] * (not parameter.is_meta))  # the plan makes one without memory
        if len(calls) == 3 and not parameter.is_meta:
            raise FULL
        return stock(parameter, group)

    monkeypatch.setattr(fresh_state, "_adamw", once)
    run = make_run(ROWS, recipe=RECIPE)
    assert main(run) == 0
    assert losses(run) == losses(expected)
    for name, weight in adapter(expected).items():
        assert torch.equal(adapter(run)[name], weight)


def test_a_state_that_never_fits_fails_before_any_update_and_says_what_to_do(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = fresh_state._adamw

    def full(parameter: torch.Tensor, group: Untyped) -> Untyped:
        if parameter.is_meta:  # the plan's, which takes no memory
            return stock(parameter, group)
        raise FULL

    monkeypatch.setattr(fresh_state, "_adamw", full)
    run = make_run(ROWS, recipe={**RECIPE, "tuning": "full"})
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert (error.code, error.category) == ("out_of_memory", "out_of_memory")
    assert "before the first update" in error.message
    assert "bf16_sr8" in str(error.hint)
    assert not event_data(run, EventKind.METRICS)


class Evaluations:
    """Runs out of memory in an evaluation's micro-batch of more than `most` rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.failures = 0
        stock = SFTTrainer.compute_loss

        def compute_loss(
            trainer: Untyped, model: Untyped, inputs: Untyped, **given: Untyped
        ) -> Untyped:
            found = stock(trainer, model, inputs, **given)  # counted, and then lost
            rows = len(inputs["input_ids"])
            if "cu_seq_lens_q" in inputs:
                rows = len(inputs["cu_seq_lens_q"]) - 1
            if not model.training and rows > most:
                self.failures += 1
                raise FULL
            return found

        monkeypatch.setattr(SFTTrainer, "compute_loss", compute_loss)


def _valid_losses(run: Path) -> list[float]:
    return [p["valid_loss"] for p in event_data(run, EventKind.METRICS) if "valid_loss" in p]


@pytest.mark.parametrize("patches", ["auto", "off"])
def test_an_evaluation_that_does_not_fit_is_taken_in_parts_and_gives_the_same_loss(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, patches: str
) -> None:
    recipe = {**RECIPE, "eval_steps": 2, "patches": patches}
    expected = make_run(ROWS, valid=VALID, recipe=recipe, name="expected")
    assert main(expected) == 0
    device = Evaluations(monkeypatch, most=1)
    run = make_run(ROWS, valid=VALID, recipe=recipe)
    assert main(run) == 0
    assert device.failures == 2  # four rows, then two; and from then on one at a time
    assert losses(run) == losses(expected)
    assert len(_valid_losses(run)) >= 2
    assert _valid_losses(run) == pytest.approx(_valid_losses(expected), rel=1e-5)
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    assert ["into 2 parts" in text for text in warnings] == [True, False]
    assert "into 4 parts" in warnings[1]


def test_an_evaluation_of_one_row_that_does_not_fit_fails_by_name(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    Evaluations(monkeypatch, most=0)
    run = make_run(ROWS, valid=VALID, recipe={**RECIPE, "eval_steps": 2})
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert (error.code, error.category) == ("out_of_memory", "out_of_memory")
    assert "an evaluation with one row at a time" in error.message
