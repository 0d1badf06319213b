"""Whole runs on the tiny model: what they leave behind, and that it is what was trained."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events, read_result
from tunesmith_schema import EventKind, Plan, RunSpec
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan_file import made_for
from tunesmith_worker.trainer.run import main

FAST = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-2}


def probe_error(model: Any, folder: Path) -> float:  # Any: transformers is untyped
    probe = load_file(folder / "probe.safetensors")
    assert probe["input_ids"].shape[1] <= 64
    assert probe["logits"].shape[1] == min(8, probe["input_ids"].shape[1])
    with torch.no_grad():
        logits = model.eval()(input_ids=probe["input_ids"]).logits[:, -probe["logits"].shape[1] :]
    return float((logits - probe["logits"]).abs().max())


def assert_no_pickles(run: Path) -> None:
    known = {".json", ".jsonl", ".safetensors", ".jinja"}
    for file in (path for path in run.rglob("*") if path.is_file()):
        if file == run / "progress":
            assert file.stat().st_size == 0  # only its time matters
            continue
        assert file.suffix in known, file
        # a zip (torch.save) or a pickle
        assert file.read_bytes()[:2] not in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"), file


def test_a_lora_run_leaves_an_adapter_that_stock_peft_loads(
    make_run: MakeRun, tiny_model: Path
) -> None:
    run = make_run(QUESTIONS, recipe=FAST)
    assert main(run) == 0
    result = read_result(run)
    assert (result.outcome, result.kind, result.directory, result.step) == (
        "succeeded",
        "lora",
        "adapter",
        3,
    )
    adapter = run / "adapter"
    assert sorted(path.name for path in adapter.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "probe.safetensors",
        "verification.json",
    ]
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "acme/tiny"
    assert config["r"] == 32
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    assert probe_error(base, adapter) > 1e-3
    assert probe_error(peft.PeftModel.from_pretrained(base, adapter), adapter) <= 1e-5
    assert_no_pickles(run)


@pytest.mark.parametrize("from_scratch", [False, True])
def test_a_full_run_leaves_a_model_that_stock_transformers_loads(
    make_run: MakeRun, from_scratch: bool
) -> None:
    run = make_run(QUESTIONS, recipe={**FAST, "tuning": "full", "from_scratch": from_scratch})
    assert main(run) == 0
    assert read_result(run).kind == "full"
    trained = transformers.AutoModelForCausalLM.from_pretrained(run / "adapter")
    assert probe_error(trained, run / "adapter") <= 1e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "adapter")
    assert tokenizer.chat_template
    assert (run / "adapter" / "generation_config.json").exists()
    assert not event_data(run, EventKind.CHECKPOINT)
    assert_no_pickles(run)


def test_bf16_keeps_an_adapter_in_fp32(make_run: MakeRun, tiny_model: Path) -> None:
    lora = make_run(QUESTIONS, recipe={**FAST, "precision": "bf16", "adapter_dtype": "fp32"})
    assert main(lora) == 0
    weights = load_file(lora / "adapter" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    tuned = peft.PeftModel.from_pretrained(base, lora / "adapter")
    assert probe_error(tuned, lora / "adapter") <= 1e-5


def test_recomputation_changes_nothing(make_run: MakeRun) -> None:
    found = []
    for recompute in (True, False):
        recipe = {**FAST, "gradient_checkpointing": recompute}
        run = make_run(QUESTIONS, recipe=recipe, name=f"recompute-{recompute}")
        assert main(run) == 0
        found.append(losses(run))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_training_from_scratch_needs_no_weights(make_run: MakeRun, tmp_path: Path) -> None:
    from tests.tiny_model import make_tiny_model

    bare = make_tiny_model(tmp_path / "bare", weights=False)
    recipe = {**FAST, "tuning": "full", "from_scratch": True}
    assert main(make_run(QUESTIONS, recipe=recipe, model_path=str(bare))) == 0


def test_events_tell_phases_choices_metrics_and_checkpoints(make_run: MakeRun) -> None:
    recipe = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "self_check": True}
    run = make_run(QUESTIONS, valid=QUESTIONS[:3], recipe=recipe)
    first = {"source_seq": 1, "created_at": 1.0, "message": "claimed"}
    (run / "events.jsonl").write_text(json.dumps(first) + '\n{"source_seq": 2, "cut off')
    assert main(run) == 0
    assert [event.source_seq for event in read_events(run)] == list(
        range(1, len(read_events(run)) + 1)
    )
    phases = event_data(run, EventKind.PHASE)
    assert [phase["phase"] for phase in phases] == [
        *("import", "load", "data", "plan", "self_check", "train", "save")
    ]
    metrics = event_data(run, EventKind.METRICS)
    trained = [point for point in metrics if "train_loss" in point]
    assert [point["step"] for point in trained] == list(range(1, 9))
    for point in trained:
        assert point["total_steps"] == 8
        for name in ("epoch", "learning_rate", "grad_norm", "tokens_per_second"):
            assert math.isfinite(point[name])
        assert 0 <= point["train_mean_token_accuracy"] <= 1
    assert [point["step"] for point in metrics if "valid_loss" in point] == list(range(1, 9))
    checkpoints = event_data(run, EventKind.CHECKPOINT)
    assert [(point["step"], point["directory"]) for point in checkpoints] == [
        (4, "checkpoints/step-4"),
        (8, "checkpoints/step-8"),
    ]
    assert set(checkpoints[0]["metrics"]) >= {"train_loss", "valid_loss", "full_valid_loss"}
    for name in ("adapter_model.safetensors", "adapter_config.json", "probe.safetensors"):
        whole = (run / "adapter" / name).read_bytes()
        assert (run / "checkpoints" / "step-8" / name).read_bytes() == whole
    counts = next(e.data for e in read_events(run) if "trained_tokens" in e.data)
    result = read_result(run)
    assert result.trained_tokens == 2 * int(str(counts["trained_tokens"]))
    assert result.trained_tokens == trained[-1]["trained_tokens"]
    assert result.metrics["train_loss"] == trained[-1]["train_loss"]
    plan = Plan.model_validate_json((run / "plan.json").read_bytes())
    assert [c.name for c in plan.choices] == [c["name"] for c in event_data(run, EventKind.CHOICE)]


def test_valid_loss_is_the_mean_over_the_tokens_of_the_file(
    make_run: MakeRun, tiny_model: Path
) -> None:
    # Rows of unequal length in unequal batches, where a mean of batch means would differ.
    valid = [{"prompt": "a", "completion": " word" * n} for n in (1, 9, 2, 30, 4)]
    recipe = {"max_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 1e-12}
    run = make_run(QUESTIONS, valid=valid, recipe=recipe)
    assert main(run) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    total, count = 0.0, 0
    for row in valid:
        prompt = len(tokenizer(row["prompt"])["input_ids"])
        ids = torch.tensor(
            [tokenizer(f"{row['prompt']}{row['completion']}<|im_end|>")["input_ids"]]
        )
        with torch.no_grad():
            logps = model(input_ids=ids).logits.log_softmax(-1)[0, prompt - 1 : -1]
        total -= float(logps.gather(1, ids[0, prompt:, None]).sum())
        count += ids.shape[1] - prompt
    (point,) = [p for p in event_data(run, EventKind.METRICS) if "valid_loss" in p]
    assert point["valid_loss"] == pytest.approx(total / count, rel=1e-5)


def test_the_same_spec_gives_the_same_bits(make_run: MakeRun) -> None:
    recipe = {**FAST, "lora": {"lora_dropout": 0.1}}
    runs = [make_run(QUESTIONS, recipe=recipe, name=name) for name in ("one", "two")]
    assert [main(run) for run in runs] == [0, 0]
    assert losses(runs[0]) == losses(runs[1])
    one, two = ((run / "adapter" / "adapter_model.safetensors").read_bytes() for run in runs)
    assert one == two
    other = make_run(QUESTIONS, recipe=recipe, name="three", seed=8)
    assert main(other) == 0
    assert losses(other) != losses(runs[0])


def test_choices_in_plan_json_are_used_again(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 1})
    spec = RunSpec.model_validate_json((run / "spec.json").read_bytes())
    choice = {"name": "learning_rate", "value": 0.125, "reason": "measured"}
    plan = {"made_for": made_for(RunDirectory(run), spec), "choices": [choice]}
    (run / "plan.json").write_text(json.dumps(plan))
    assert main(run) == 0
    (point,) = event_data(run, EventKind.METRICS)
    assert point["learning_rate"] == 0.125
    told = {**choice, "reason": "reused from plan.json: measured"}
    assert told in event_data(run, EventKind.CHOICE)
    kept = json.loads((run / "plan.json").read_text())["choices"]
    assert {**choice, "figures": {}} in kept


@pytest.mark.parametrize("plan", ['{"made_for": "another", "choices": []}', "{}", ""])
def test_a_plan_for_something_else_is_made_anew_and_said(make_run: MakeRun, plan: str) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 1})
    (run / "plan.json").write_text(plan)
    assert main(run) == 0
    assert any("choices are recomputed" in event.message for event in read_events(run))
    spec = RunSpec.model_validate_json((run / "spec.json").read_bytes())
    assert json.loads((run / "plan.json").read_text())["made_for"] == made_for(
        RunDirectory(run), spec
    )


def test_a_plan_does_not_outlive_its_data(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 1})
    assert main(run) == 0
    before = json.loads((run / "plan.json").read_text())["made_for"]
    (run / "data" / "train.jsonl").write_text('{"prompt": "One", "completion": " row"}\n')
    assert main(run) == 0
    assert any("other data" in event.message for event in read_events(run))
    assert json.loads((run / "plan.json").read_text())["made_for"] != before


def test_packed_rows_do_not_see_one_another(make_run: MakeRun) -> None:
    """All rows in one pack give the loss that they give in one padded batch."""
    found = []
    for packing in (True, False):
        recipe = {**FAST, "packing": packing, "per_device_train_batch_size": 1 if packing else 8}
        run = make_run(QUESTIONS[:8], recipe=recipe, name=f"packing-{packing}")
        assert main(run) == 0
        found.append(losses(run))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_accumulation_weighs_tokens_not_micro_batches(make_run: MakeRun) -> None:
    rows = [{"prompt": "a", "completion": " word" * n} for n in (1, 30, 2, 9)]
    found = []
    for size in (1, 2, 4):
        recipe = {"max_steps": 3, "learning_rate": 1e-2, "per_device_train_batch_size": size}
        recipe["gradient_accumulation_steps"] = 4 // size
        run = make_run(rows, recipe=recipe, name=f"size-{size}")
        assert main(run) == 0
        found.append(losses(run))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == pytest.approx(found[0], rel=1e-4)


def test_dropped_rows_are_reported(make_run: MakeRun) -> None:
    long = {"question": "word " * 300, "answer": "yes"}
    run = make_run([*QUESTIONS, long], recipe=FAST)
    assert main(run) == 0
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    assert any(
        re.search("1 of 17 rows dropped, longer than max_seq_length=256", w) for w in warnings
    )
