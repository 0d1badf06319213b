"""Whole runs whose memory is planned, and runs out: on a device that is simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events, read_result
from tunesmith_schema import Choice, EventKind, Plan
from tunesmith_worker.engine.memory.choose import SAFETY, FreeMemory
from tunesmith_worker.engine.memory.probe import Probe, run_probe
from tunesmith_worker.engine.patches.decoder import DecoderLayerPatch
from tunesmith_worker.trainer.auto import memory_plan
from tunesmith_worker.trainer.methods.sft import SFTTrainer
from tunesmith_worker.trainer.run import main

RECIPE = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-2,
}
ROWS = [{**row, "answer": str(row["answer"]) * (1 + i % 3)} for i, row in enumerate(QUESTIONS * 2)]
Untyped = Any  # Any: a run's layers and rows


class Device:
    """Runs out of memory in a layer's forward or its backward, where `full` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: Callable[[Device], bool]) -> None:
        self.calls = 0
        self.failures = 0
        self.in_backward = False
        self.keeps = False
        self.rows = 0
        stock, device = DecoderLayerPatch.run, self

        def run(patch: Untyped, x: torch.Tensor, segments: Untyped, kwargs: Untyped) -> Untyped:
            out = stock(patch, x, segments, kwargs)
            if not (patch._layer.training and out.requires_grad):
                return out
            device.calls += 1
            device.keeps = not patch._layer.gradient_checkpointing
            device.rows = len(segments.rows())
            if full(device):
                if device.in_backward:
                    out.register_hook(device.fail)
                else:
                    device.fail(out)
            return out

        monkeypatch.setattr(DecoderLayerPatch, "run", run)

    def fail(self, _: torch.Tensor) -> None:
        self.failures += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more")


def chosen(run: Path) -> dict[str, Any]:  # Any: JSON
    plan = Plan.model_validate_json((run / "plan.json").read_bytes())
    (choice,) = (choice for choice in plan.choices if choice.name == "memory_plan")
    assert isinstance(choice.value, dict)
    return choice.value | choice.figures


def report_of(run: Path) -> dict[str, Any]:  # Any: JSON
    (data,) = (data for data in event_data(run, EventKind.MESSAGE) if "real_peak_bytes" in data)
    return data


def adapter(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(run / "adapter" / "adapter_model.safetensors")
    return found


def without_heap(probe: Callable[..., Probe], *given: Untyped) -> Probe:
    return replace(probe(*given), allocator=0)


def assert_same_training(run: Path, expected: Path, *, rel: float) -> None:
    """Losses, counts and accuracies; weights as well where the arithmetic is the same (AdamW makes
    a step of its own size out of the rounding of a gradient that is zero)."""
    assert read_result(run).outcome == "succeeded"
    assert read_result(run).step == read_result(expected).step == 4
    assert read_result(run).trained_tokens == read_result(expected).trained_tokens
    assert losses(run) == pytest.approx(losses(expected), rel=rel)
    if rel <= 1e-6:
        for name, weight in adapter(expected).items():
            assert torch.allclose(adapter(run)[name], weight, rtol=1e-5, atol=1e-7)
    accuracy = [
        [point["train_mean_token_accuracy"] for point in event_data(one, EventKind.METRICS)]
        for one in (run, expected)
    ]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.02)


def test_the_plan_is_an_event_and_stands_in_the_plan_with_its_alternatives(
    make_run: MakeRun,
) -> None:
    run = make_run(ROWS, recipe=RECIPE)
    assert main(run) == 0
    value = chosen(run)
    assert (value["keep"], value["offload"], value["parts"]) == (2, 0, 1)
    assert (value["rows"], value["passes"]) == (4, 2)
    assert [one["name"] for one in value["alternatives"]] == ["keep", "recompute"]
    keep, recompute = value["alternatives"]
    assert keep["predicted_peak_bytes"] == value["predicted_peak_bytes"]
    assert recompute["predicted_peak_bytes"] < keep["predicted_peak_bytes"]
    assert recompute["predicted_cost"] > keep["predicted_cost"] == 1.0
    assert sum(value["items"].values()) == value["predicted_peak_bytes"] < value["budget_bytes"]
    (told,) = (d for d in event_data(run, EventKind.CHOICE) if d["name"] == "memory_plan")
    assert told["value"] | told["figures"] == value
    assert "keep" in told["reason"]
    assert "recompute" in told["reason"]
    report = report_of(run)
    assert report["real_peak_bytes"] is None or report["real_peak_bytes"] >= 0
    assert report["largest_micro_batch_tokens"] <= value["longest_micro_batch_tokens"]


def test_a_run_is_the_same_with_and_without_the_trial(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial before the first step draws no random number and leaves no gradient."""
    recipe = {**RECIPE, "lora": {"lora_dropout": 0.2}}
    tried = make_run(ROWS, recipe=recipe, name="tried")
    assert main(tried) == 0
    untried = Probe(peak=1_000_000, kept=(100_000, 100_000))
    monkeypatch.setattr(memory_plan, "run_probe", lambda *_: untried)
    plain = make_run(ROWS, recipe=recipe, name="plain")
    assert main(plain) == 0
    assert losses(tried) == losses(plain)
    for name, weight in adapter(plain).items():
        assert torch.equal(adapter(tried)[name], weight)


@pytest.mark.parametrize("given", [True, False, "offload"])
def test_what_the_user_says_is_done_and_counted(make_run: MakeRun, given: bool | str) -> None:
    run = make_run(ROWS, recipe={**RECIPE, "gradient_checkpointing": given})
    assert main(run) == 0
    layers = report_of(run)["layers"]
    recomputes = 0 if given is False else 4 * 2
    assert [layer["recomputes"] for layer in layers] == [recomputes] * 2
    assert chosen(run)["keep"] == (2 if given is False else 0)
    messages = [event.message for event in read_events(run)]
    assert any("no effect on CPU" in text for text in messages) == (given == "offload")
    assert not any(event.level == "warn" for event in read_events(run))


def test_little_memory_recomputes_and_a_resumed_run_does_what_was_settled(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_run(ROWS, recipe=RECIPE, name="first")
    with monkeypatch.context() as patched:
        room = FreeMemory(free=3_000_000, host_free=0, on_gpu=False)
        patched.setattr(memory_plan, "read_free_memory", lambda device, held: room)
        assert main(first) == 0
    assert chosen(first)["keep"] == 0
    assert chosen(first)["alternatives"][0]["fits"] is False
    again = make_run(ROWS, recipe=RECIPE, name="again")
    (again / "plan.json").write_bytes((first / "plan.json").read_bytes())
    assert main(again) == 0
    assert [layer["mode"] for layer in report_of(again)["layers"]] == ["recompute"] * 2
    assert losses(again) == losses(first)


@pytest.mark.parametrize("in_backward", [False, True], ids=["forward", "backward"])
def test_out_of_memory_in_a_step_loses_no_step_and_repeats_none(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, in_backward: bool
) -> None:
    """In the second micro-batch of the third step, when gradients have gathered; with dropout,
    whose masks must be drawn again."""
    recipe = {**RECIPE, "lora": {"lora_dropout": 0.2}}
    expected = make_run(ROWS, recipe=recipe, name="expected")
    assert main(expected) == 0
    per_step = 2 * 2
    at = 2 * 2 + 2 * per_step + 2 + 1  # the trial, two steps, one micro-batch, first layer
    device = Device(monkeypatch, lambda d: d.keeps and d.calls >= at)
    device.in_backward = in_backward
    run = make_run(ROWS, recipe=recipe)
    assert main(run) == 0
    assert device.failures == 2  # two layers keep, then one, then none
    assert_same_training(run, expected, rel=1e-6)
    assert losses(run)[:2] == losses(expected)[:2]
    warnings = [event for event in read_events(run) if event.level == "warn"]
    assert ["1 layers keep" in event.message for event in warnings] == [True, False]
    assert "Out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.)" in warnings[0].message
    assert chosen(run)["keep"] == 0
    assert json.loads((run / "plan.json").read_text())["choices"][-1]["reason"].startswith("out of")


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_rows_are_split_when_recomputing_does_not_help(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tuning: str
) -> None:
    """The global batch stays: losses and weights are those of the whole rows."""
    recipe = {**RECIPE, "tuning": tuning, "learning_rate": 1e-3}
    expected = make_run(ROWS, recipe=recipe, name="expected")
    assert main(expected) == 0
    Device(monkeypatch, lambda d: d.calls > 2 * 2 + 6 and d.rows > 1)
    run = make_run(ROWS, recipe=recipe)
    assert main(run) == 0
    assert losses(run) == pytest.approx(losses(expected), rel=1e-5)
    assert read_result(run).trained_tokens == read_result(expected).trained_tokens
    value = chosen(run)
    assert (value["keep"], value["parts"], value["rows"], value["passes"]) == (0, 4, 1, 8)


def test_padded_rows_are_split_too(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {**RECIPE, "patches": "off"}
    expected = make_run(ROWS, recipe=recipe, name="expected")
    assert main(expected) == 0
    stock = SFTTrainer.compute_loss

    def compute_loss(self: Untyped, model: Untyped, inputs: Untyped, *args: Untyped) -> Untyped:
        if model.training and len(inputs["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return stock(self, model, inputs, *args)

    def with_keywords(self: Untyped, model: Untyped, inputs: Untyped, **given: Untyped) -> Untyped:
        return compute_loss(self, model, inputs, False, given.get("num_items_in_batch"))

    monkeypatch.setattr(SFTTrainer, "compute_loss", with_keywords)
    run = make_run(ROWS, recipe=recipe)
    assert main(run) == 0
    assert chosen(run)["parts"] == 2
    assert_same_training(run, expected, rel=1e-5)


def test_what_does_not_fit_is_found_before_the_first_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest rows are tried first: nothing runs out of memory later."""
    longest = [0]

    def full(device: Device) -> bool:
        longest[0] = max(longest[0], device.rows)
        return device.keeps

    device = Device(monkeypatch, full)
    run = make_run(ROWS, recipe=RECIPE)
    assert main(run) == 0
    assert device.failures == 2
    assert [event.kind for event in read_events(run) if event.kind == EventKind.METRICS] == (
        [EventKind.METRICS] * 4
    )
    first_step = next(e.source_seq for e in read_events(run) if e.kind == EventKind.METRICS)
    assert all(e.source_seq < first_step for e in read_events(run) if e.level == "warn")
    assert chosen(run)["keep"] == 0


def test_a_model_too_large_for_one_row_fails_and_says_what_to_do(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    Device(monkeypatch, lambda device: True)
    run = make_run(ROWS, recipe={**RECIPE, "gradient_checkpointing": False})
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert (error.code, error.category) == ("out_of_memory", "out_of_memory")
    assert "one row at a time" in error.message
    assert "max_seq_length" in str(error.hint)
    assert "gradient_checkpointing='auto'" in str(error.hint)


def test_other_errors_are_not_taken_for_memory(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Untyped, *_: Untyped) -> None:
        raise RuntimeError("some other trouble")

    monkeypatch.setattr(Device, "fail", fail)
    Device(monkeypatch, lambda device: device.calls > 6)
    run = make_run(ROWS, recipe=RECIPE)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert "some other trouble" in error.message
    assert not any(event.level == "warn" for event in read_events(run))


def test_a_layout_that_does_not_fit_is_replaced_by_one_that_does(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded rows run through stock layers, which keep more than ours: 0.3 MB more here, as much as
    the heap's share of the peak differs from one probe to the next. So that is left out."""
    heap_left_out = partial(without_heap, run_probe)
    monkeypatch.setattr(memory_plan, "run_probe", heap_left_out)
    recipe = {"max_steps": 40, "per_device_train_batch_size": 4, "gradient_checkpointing": False}
    plenty = make_run(QUESTIONS, recipe={**recipe, "max_steps": 1}, name="plenty")
    assert main(plenty) == 0
    room = FreeMemory(
        free=int(chosen(plenty)["predicted_peak_bytes"] * 1.02 / SAFETY[False]),
        host_free=0,
        on_gpu=False,
    )
    monkeypatch.setattr(memory_plan, "read_free_memory", lambda device, held: room)
    run = make_run(QUESTIONS, recipe=recipe, name="little")
    assert main(run) == 0
    packing = layout_of(run)
    assert packing.value == "padding_free"
    assert packing.reason.startswith("padded needs ")
    assert any("Micro-batches are padding_free" in e.message for e in read_events(run))
    assert chosen(run)["fits"]


def test_a_layout_that_fits_is_kept(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 40, "per_device_train_batch_size": 4})
    assert main(run) == 0
    assert layout_of(run).value == "padded"


def layout_of(run: Path) -> Choice:
    plan = Plan.model_validate_json((run / "plan.json").read_bytes())
    (packing,) = (choice for choice in plan.choices if choice.name == "packing")
    return packing
