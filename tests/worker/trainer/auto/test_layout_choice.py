"""The layout of a run: the rule, plan.json, and a layout that does not fit into memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import benchmarks
import pytest
import torch
from benchmarks.layouts import Cell

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events
from tunesmith_schema import EventKind, Recipe
from tunesmith_worker.rundir.plan import Device
from tunesmith_worker.trainer.auto.layout_choice import LayoutPlan, plan_layouts
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
        "parameters": 12_000_000,
        "stock_attention": None,
    }
    given["device"] = Device(name="cpu", is_gpu=False, has_bf16=False)
    return plan_layouts(Recipe.model_validate(recipe or {}), lengths=lengths, **{**given, **facts})


EVEN = [100] * 50
SHORT = [20] * 50
CPU, GPU = (Device(name=name, is_gpu=name == "gpu", has_bf16=False) for name in ("cpu", "gpu"))


def first(*arguments: Any, **facts: Any) -> str:  # Any: those of `planned`
    return planned(*arguments, **facts).first


def test_steps_of_several_micro_batches_are_packed() -> None:
    plan = planned(EVEN)
    assert list(plan.layouts) == ["packed", "padding_free", "padded"]
    assert plan.layouts["packed"].tokens == 1600  # the whole step
    assert planned([4000] * 50).first == "padding_free"  # 8 rows are more than fit in a pack
    assert planned([16] * 50).first == "padded"  # 128 tokens without padding
    assert planned([16] * 49 + [20]).first == "packed"


@pytest.mark.parametrize(
    ("expected", "lengths", "facts"),
    [
        ("padded", SHORT, {}),
        ("padded", SHORT, {"parameters": 10**9}),  # no padding: any model
        ("padding_free", [200] * 50, {}),  # 1,600 tokens
        ("padded", [16, 24] * 25, {"parameters": 10**5}),
        ("padding_free", [16, 24] * 25, {"parameters": 10**8}),  # padding costs more
        ("padding_free", SHORT, {"device": GPU}),
        ("padding_free", [10] * 4000 + [400], {"parameters": 10**5}),
    ],
)
def test_a_few_tokens_on_a_cpu_are_padded(
    expected: str, lengths: list[int], facts: dict[str, Any]
) -> None:
    assert first(lengths, passes=1, **{"device": CPU, **facts}) == expected


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
def test_one_layout_where_there_is_nothing_to_choose(
    expected: str,
    recipe: dict[str, Any],
    facts: dict[str, Any],  # Any: JSON, a plan's
) -> None:
    plan = planned(EVEN, recipe, **facts)
    assert list(plan.layouts) == [expected]
    assert plan.reason


def test_micro_batches_that_the_user_sized_are_not_made_larger() -> None:
    assert first(EVEN, {"per_device_train_batch_size": 8}) == "padded"
    assert first(EVEN, passes=1) == "padded"


def test_the_rule_is_within_five_percent_of_the_fastest_of_the_measured_cells() -> None:
    """The times that benchmarks/layouts.py measured, without measuring them again."""
    cells = json.loads((Path(benchmarks.__file__).parent / "results/layouts.json").read_text())
    assert len(cells["cells"]) >= 30
    for cell in cells["cells"]:
        seconds = cell["seconds"]
        chosen = Cell(cell["model"], cell["lengths"], cell["rows"]).plan.first
        assert seconds[chosen] <= 1.05 * min(seconds.values()), cell


def choice_of(run: Path) -> dict[str, Any]:  # Any: JSON
    (choice,) = [c for c in event_data(run, EventKind.CHOICE) if c["name"] == "packing"]
    return choice


@pytest.mark.parametrize("earlier", ["padding_free", "padded", "padded_compiled"])
def test_the_layout_of_plan_json_is_used_again(make_run: MakeRun, earlier: str) -> None:
    """Also one that an earlier version measured; compiled layers no longer exist."""
    recipe = {"max_steps": 40, "logging_steps": 1, "per_device_train_batch_size": 2}
    run = make_run(QUESTIONS, recipe=recipe, name="first")
    assert main(run) == 0
    assert choice_of(run)["value"] == "padded"
    plan = json.loads((run / "plan.json").read_text())
    for choice in plan["choices"]:
        if choice["name"] == "packing":
            choice |= {"value": earlier, "figures": {"steps": ["padded", earlier]}}
    again = make_run(QUESTIONS, recipe=recipe, name="again")
    (again / "plan.json").write_text(json.dumps(plan))
    assert main(again) == 0
    assert choice_of(again)["value"] == ("padding_free" if earlier == "padding_free" else "padded")
    assert losses(again) == pytest.approx(losses(run), rel=1e-5)


@pytest.fixture
def side_by_side_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = trainers.SFTTrainer.compute_loss

    def compute_loss(self: Any, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        if model.training and inputs["input_ids"].shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return forward(self, model, inputs, *rest, **named)

    monkeypatch.setattr(trainers.SFTTrainer, "compute_loss", compute_loss)


@pytest.mark.usefixtures("side_by_side_does_not_fit")
def test_a_layout_that_runs_out_of_memory_is_replaced_and_costs_no_step(make_run: MakeRun) -> None:
    """And nothing is recomputed: the smaller layout needs less memory."""
    recipe = {"max_steps": 40, "learning_rate": 1e-3, "per_device_train_batch_size": 2}
    run = make_run(QUESTIONS, recipe=recipe, name="padded")
    assert main(run) == 0
    messages = [event.message for event in read_events(run)]
    assert any(text.startswith("Micro-batches are padding_free, because") for text in messages)
    assert not any(text.startswith("Out of memory") for text in messages)
    plan = json.loads((run / "plan.json").read_text())
    (choice,) = [c for c in plan["choices"] if c["name"] == "packing"]
    assert choice["value"] == "padding_free"
    (choice,) = [c for c in plan["choices"] if c["name"] == "memory_plan"]
    assert choice["reason"].startswith("out of memory: Micro-batches are padding_free")
    plain = make_run(QUESTIONS, recipe={**recipe, "packing": False}, name="plain")
    assert main(plain) == 0
    assert losses(run) == pytest.approx(losses(plain), rel=1e-5)


def test_a_layout_that_fails_in_the_probe_leaves_the_plan_of_the_smaller_one(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the longest micro-batch differ in length: padded, it has more tokens."""
    probe_loss = trainers.SFTTrainer.probe_loss

    def full(self: Any, batch: Any, labelled: int) -> Any:
        if batch["input_ids"].shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return probe_loss(self, batch, labelled)

    monkeypatch.setattr(trainers.SFTTrainer, "probe_loss", full)
    rows = [{**row, "answer": str(row["answer"]) * (1 + i % 2)} for i, row in enumerate(QUESTIONS)]
    rows[0] = {**rows[0], "answer": str(rows[0]["answer"]) * 3}
    recipe = {"max_steps": 40, "per_device_train_batch_size": 2}
    run = make_run(rows, recipe=recipe, name="padded")
    plain = make_run(rows, recipe={**recipe, "packing": False}, name="plain")
    assert main(run) == main(plain) == 0
    assert any(
        "padding_free, because the layout padded ran out" in e.message for e in read_events(run)
    )
    assert longest_planned(run) == longest_planned(plain)


def longest_planned(run: Path) -> int:
    plan = json.loads((run / "plan.json").read_text())
    (figures,) = [c["figures"] for c in plan["choices"] if c["name"] == "memory_plan"]
    return int(figures["longest_micro_batch_tokens"])
