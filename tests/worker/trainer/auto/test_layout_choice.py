"""Which layout is chosen: the candidates, the trial, and a run that repeats what was found."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events
from tunesmith_schema import EventKind, Recipe
from tunesmith_worker.rundir.plan import Device
from tunesmith_worker.trainer.auto import layouts
from tunesmith_worker.trainer.auto.layout_choice import LayoutPlan, plan_layouts
from tunesmith_worker.trainer.auto.layout_trial import MOST_ROUNDS, WORTH_ANOTHER_LOOK, LayoutTrial
from tunesmith_worker.trainer.methods import sft as trainers
from tunesmith_worker.trainer.run import main


def planned(
    lengths: list[int],
    recipe: dict[str, Any] | None = None,
    **facts: Any,  # Any: JSON, a plan's
) -> LayoutPlan:
    given: dict[str, Any] = {
        "patched": True,
        "rows": 8,
        "passes": 2,
        "total_steps": 200,
        "stock_attention": None,
    }
    given["device"] = Device(name="cpu", is_gpu=False, has_bf16=False)
    return plan_layouts(Recipe.model_validate(recipe or {}), lengths=lengths, **{**given, **facts})


EVEN = [100] * 50


def test_even_rows_are_tried_in_every_layout() -> None:
    plan = planned(EVEN)
    assert list(plan.candidates) == ["padding_free", "packed", "padded"]
    assert plan.slots_per_token == {"padding_free": 1, "packed": 1, "padded": 1}
    assert plan.candidates["packed"].tokens == 1600  # the whole step


def test_what_is_mostly_padding_is_not_tried_padded() -> None:
    assert "padded" not in planned([10] * 40 + [1000] * 10).candidates


def test_one_long_row_among_short_ones_is_not_padded_to() -> None:
    """It would make one micro-batch 20 times larger than any other, and the run's peak memory."""
    assert "padded" not in planned([100] * 5000 + [2000]).candidates


@pytest.mark.parametrize(
    ("expected", "recipe", "facts"),
    [
        ("padding_free", {"packing": False}, {}),
        ("packing", {"packing": True}, {}),
        ("padded", {}, {"patched": False}),
        ("padded", {"packing": False}, {"patched": False}),
        ("padded", {}, {"stock_attention": "attention dropout"}),
        ("padding_free", {}, {"total_steps": 39}),
    ],
)
def test_one_candidate_where_there_is_nothing_to_choose(
    expected: str,
    recipe: dict[str, Any],
    facts: dict[str, Any],  # Any: JSON, a plan's
) -> None:
    plan = planned(EVEN, recipe, **facts)
    assert list(plan.candidates) == [expected]
    assert plan.reason


def test_micro_batches_that_the_user_sized_are_not_made_larger() -> None:
    assert "packed" not in planned(EVEN, {"per_device_train_batch_size": 8}).candidates
    assert "packed" not in planned(EVEN, passes=1).candidates


def tried(costs: dict[str, float], *, noise: float = 0.0, seed: int = 0) -> LayoutTrial:
    """A trial of candidates that take so many seconds a slot; the first step of each takes 3x."""
    draw, trial, seen = random.Random(seed), LayoutTrial(dict.fromkeys(costs, 1.0)), set()
    while trial.running:
        name = trial.current
        cost = costs[name] * draw.uniform(1 - noise, 1 + noise) * (1 if name in seen else 1.4)
        seen.add(name)
        trial.record(1000 * cost, 1000)
    return trial


@pytest.mark.parametrize("best", ["free", "packed", "padded"])
def test_the_fastest_is_found(best: str) -> None:
    costs = {"free": 1.0, "packed": 1.0, "padded": 1.0} | {best: 0.9}
    assert tried(costs).current == best


def test_a_difference_that_is_none_changes_nothing() -> None:
    assert tried({"free": 1.0, "packed": 0.99, "padded": 0.985}).current == "free"


def test_what_is_hopeless_is_tried_once() -> None:
    steps = tried({"free": 1.0, "padded": 3.0}).steps
    assert steps.count("padded") == 1
    rounds = 1 + len(WORTH_ANOTHER_LOOK)
    assert tried({"free": 1.0, "padded": 1.05}).steps.count("padded") == 1 + rounds


def test_noise_in_the_steps_never_costs_more_than_a_twentieth() -> None:
    for seed in range(300):
        draw = random.Random(-seed)
        costs = {name: draw.uniform(0.8, 1.6) for name in ("free", "packed", "padded")}
        chosen = costs[tried(costs, noise=0.04, seed=seed).current]
        assert chosen <= 1.05 * min(costs.values()), (costs, seed)


def test_a_trial_costs_less_than_a_fiftieth_of_200_steps() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        costs = {"free": 1.0, "packed": draw.uniform(0.9, 1.2), "padded": draw.uniform(0.7, 3)}
        spent = sum(costs[name] / min(costs.values()) - 1 for name in tried(costs).steps)
        assert spent <= 0.02 * 200, (costs, spent)


def test_steps_of_unlike_rows_are_measured_for_longer() -> None:
    """A layout that is 8 % faster, in steps that differ by 7 % (one sigma) by their rows."""
    found = 0
    for seed in range(100):
        trial = tried({"free": 1.08, "packed": 1.0}, noise=0.12, seed=seed)
        found += trial.current == "packed"
        assert len(trial.steps) <= 2 * (1 + MOST_ROUNDS)
    assert found >= 90
    quiet = tried({"free": 1.08, "packed": 1.0}, noise=0.001)
    assert len(quiet.steps) <= 2 * (1 + 1 + len(WORTH_ANOTHER_LOOK))


def test_padding_counts() -> None:
    trial = LayoutTrial({"free": 1.0, "padded": 1.5})
    while trial.running:
        trial.record(0.9 if trial.current == "padded" else 1.0, 1)
    assert trial.current == "free"  # 0.9 a slot are 1.35 a token
    assert trial.tokens_per_second() == {"free": 1.0, "padded": pytest.approx(1 / 1.35)}


@pytest.fixture
def padded_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """End to end takes twice as long as side by side."""
    record = LayoutTrial.record

    def told(self: LayoutTrial, seconds: float, slots: int) -> None:
        record(self, slots * (1.0 if self.current == "padded" else 2.0), slots)

    monkeypatch.setattr(LayoutTrial, "record", told)


@pytest.mark.usefixtures("padded_is_fast")
def test_a_repeated_run_takes_the_same_layouts_and_gives_the_same_losses(
    make_run: MakeRun,
) -> None:
    recipe = {"max_steps": 40, "logging_steps": 1}
    first = make_run(QUESTIONS, recipe=recipe, name="first")
    assert main(first) == 0
    (choice,) = [c for c in event_data(first, EventKind.CHOICE) if c["name"] == "packing"]
    assert choice["value"] == "padded"
    assert choice["figures"]["steps"].count("padded") >= 2
    assert choice["reason"].startswith(f"{layouts._unit()}, measured over")
    assert {"padded", "padding_free"} <= set(choice["figures"]["tokens_per_second"])
    plan = json.loads((first / "plan.json").read_text())
    assert plan["choices"][-1]["figures"] == choice["figures"]

    again = make_run(QUESTIONS, recipe=recipe, name="again")
    (again / "plan.json").write_bytes((first / "plan.json").read_bytes())
    assert main(again) == 0
    assert losses(again) == losses(first)
    assert _weights(again) == _weights(first)
    (choice_again,) = [c for c in event_data(again, EventKind.CHOICE) if c["name"] == "packing"]
    assert choice_again["reason"] == f"reused from plan.json: {choice['reason']}"
    plan_again = json.loads((again / "plan.json").read_text())
    kept = {c["name"]: c["reason"] for c in plan["choices"] if c["name"] != "memory_plan"}
    assert kept.items() <= {c["name"]: c["reason"] for c in plan_again["choices"]}.items()


@pytest.mark.parametrize(
    ("gpu", "threads", "unit"),
    [
        (False, 1, "tokens per CPU-second"),
        (False, 2, "tokens per second"),
        (True, 1, "tokens per second"),
    ],
)
def test_a_speed_is_told_in_the_unit_it_was_measured_in(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, threads: int, unit: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert layouts._unit() == unit


def _weights(run: Path) -> bytes:
    return (run / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.mark.usefixtures("padded_is_fast")
def test_a_run_that_ends_within_the_trial_is_repeated_exactly_too(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith_worker.trainer.auto.layout_choice.TRIAL_STEPS", 3)
    first = make_run(QUESTIONS, recipe={"max_steps": 3}, name="first")
    assert main(first) == 0
    (choice,) = [c for c in event_data(first, EventKind.CHOICE) if c["name"] == "packing"]
    assert len(choice["figures"]["steps"]) == 3
    again = make_run(QUESTIONS, recipe={"max_steps": 3}, name="again")
    (again / "plan.json").write_bytes((first / "plan.json").read_bytes())
    assert main(again) == 0
    assert losses(again) == losses(first)


@pytest.fixture
def side_by_side_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = trainers.SFTTrainer.compute_loss

    def compute_loss(self: Any, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        if model.training and inputs["input_ids"].shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return forward(self, model, inputs, *rest, **named)

    monkeypatch.setattr(trainers.SFTTrainer, "compute_loss", compute_loss)


@pytest.mark.usefixtures("side_by_side_does_not_fit")
def test_a_layout_that_runs_out_of_memory_is_given_up_and_costs_no_step(make_run: MakeRun) -> None:
    """And the first one keeps its memory plan: nothing is recomputed for the other's sake."""
    rows = [{"prompt": "Go on", "completion": " five" * 30} for _ in range(320)]
    recipe = {"max_steps": 40, "learning_rate": 1e-3}
    run = make_run(rows, recipe=recipe, name="tried")
    assert main(run) == 0
    said = [event.message for event in read_events(run)]
    assert any(one.startswith("padded micro-batches failed and are no longer used") for one in said)
    assert not any(one.startswith("Out of memory") for one in said)
    (choice,) = [c for c in event_data(run, EventKind.CHOICE) if c["name"] == "packing"]
    assert "padded" not in {choice["value"], *choice["figures"]["steps"]}
    plain = make_run(rows, recipe={**recipe, "packing": False}, name="plain")
    assert main(plain) == 0
    assert losses(run) == pytest.approx(losses(plain), rel=1e-5)
