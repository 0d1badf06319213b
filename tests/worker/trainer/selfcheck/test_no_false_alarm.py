"""Good runs give no alarm, whatever trains and however; and looking changes no bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import COMMON, FAMILIES
from tests.worker.runs import QUESTIONS, losses, read_events, read_result
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.selfcheck import Tripwires, tripwires

from .planted import FULL, TEN, trained

Untyped = Any  # Any: transformers is untyped

GOOD: dict[str, dict[str, Any]] = {  # Any: JSON
    "rslora-dropout-warm-up": {
        **TEN,
        "lora": {"use_rslora": True, "lora_dropout": 0.3, "r": 4},
        "warmup_steps": 11,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "cosine",
    },
    "stock": {**TEN, "patches": "off"},
    "some-layers-and-head": {
        **TEN,
        "lora": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
        "allow_full_embeddings": True,
    },
    "token-rows": {**TEN, "add_tokens": ["<new>"]},
    "biases": {**TEN, "lora": {"bias": "all"}},
    "full-fp32": {**FULL, "precision": "fp32", "warmup_steps": 5},
    "full-bf16": {**FULL, "precision": "bf16", "learning_rate": 1e-6},
    "full-error-word": {**FULL, "precision": "bf16_split_master", "learning_rate": 1e-7},
    "full-sr8": {**FULL, "precision": "bf16_sr8", "learning_rate": 1e-6, "packing": True},
}


def folder_of(family: str, folder: Path) -> Path:
    """A fresh model of a family, with the tiny model's tokenizer."""
    if family == "mixtral":
        config = transformers.MixtralConfig(**COMMON, num_local_experts=8, num_experts_per_tok=1)
    else:
        config = FAMILIES[family]()
    tokenizer = make_tiny_tokenizer()
    config.vocab_size = len(tokenizer)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "recipe"),
    [
        ("qwen3", TEN),
        ("gemma3", TEN),
        ("phi3", TEN),
        ("granite", TEN),
        ("olmo2", FULL),
        ("llama-bias", FULL),
        ("mixtral", FULL),
        ("mixtral", {**TEN, "lora": {"target_modules": ["q_proj", "o_proj"]}}),
    ],
)
def test_no_family_gives_an_alarm(
    make_run: MakeRun, tmp_path: Path, family: str, recipe: dict[str, Any]
) -> None:
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(folder_of(family, tmp_path / "model")))
    trained(run, lambda trainer: None)
    assert read_result(run).error is None
    assert [event.message for event in read_events(run) if event.level == "warn"] == []


@pytest.mark.parametrize("name", GOOD)
def test_a_good_run_gives_no_alarm(make_run: MakeRun, name: str) -> None:
    run = make_run(QUESTIONS, recipe=GOOD[name])
    trained(run, lambda trainer: None)
    assert read_result(run).error is None
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    expected = 2 if name == "full-bf16" else 0  # plain bf16 is warned of, and its lost updates
    assert len(warnings) == expected, warnings


def test_looks_are_at_steps_1_10_and_50_and_change_no_bit(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int | None] = []

    def settle(findings: Untyped, events: Untyped, step: int | None) -> None:
        assert list(findings) == []
        looked.append(step)

    monkeypatch.setattr(tripwires, "report_findings", settle)
    curves = []
    for name in ("with", "without"):
        recipe = {**TEN, "max_steps": 51, "logging_steps": 17, "self_check": name == "with"}
        run = make_run(QUESTIONS, recipe=recipe, name=name)
        trainer = trained(run, lambda trainer: None)
        weights = [p.detach() for p in trainer.model.parameters()]
        curves.append([torch.tensor(losses(run), dtype=torch.float64), *weights])
    assert looked == [None, 1, 10, 50]
    assert all(torch.equal(ours, plain) for ours, plain in zip(*curves, strict=True))


def test_a_resumed_run_is_not_looked_at_twice_and_remembers(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int | None] = []
    monkeypatch.setattr(
        tripwires, "report_findings", lambda findings, events, step: looked.append(step)
    )
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    trainer = SimpleNamespace(model=model)
    wires = Tripwires(trainer, EventLog(make_run(QUESTIONS) / "events.jsonl"))
    for name, value in {"had_gradient": ["0.weight"]}.items():  # as a resume point brings it
        setattr(wires, name, value)
    state = SimpleNamespace(global_step=10)
    wires.on_train_begin(None, state, None)
    wires.on_step_end(None, state, None)
    assert looked == [10], "what is frozen is looked at before the first backward, and no more"
    assert wires.state() == {"args": {}, "attributes": {"had_gradient": ["0.weight"]}}
    state.global_step = 60
    wires.on_train_begin(None, state, None)
    assert looked == [10]
