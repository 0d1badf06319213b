"""The gradients of one optimiser step of the whole trainer, on real models and real rows: ours,
rows end to end, against stock with its padded batches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import losses
from tunesmith_worker.engine.model import adapters
from tunesmith_worker.trainer.callbacks import RunCallback
from tunesmith_worker.trainer.methods.sft import SFTTrainer
from tunesmith_worker.trainer.run import main

from .models import assert_same_gradients

Untyped = Any  # Any: transformers and PEFT are not typed

RECIPE = {
    "max_steps": 1,
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.0,
}


@dataclass
class Step:
    """What the trainer's one step saw and made."""

    loss: float = 0.0
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    batches: list[dict[str, Untyped]] = field(default_factory=list)


def with_random_b(attach: Untyped) -> Untyped:
    """A fresh adapter has B = 0, and A no gradient."""

    def attached(*arguments: Untyped) -> Untyped:
        model = attach(*arguments)
        draw = torch.Generator().manual_seed(5)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data = torch.randn(parameter.shape, generator=draw) * 0.05
        return model

    return attached


@pytest.fixture
def step_of(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Untyped:
    """`step_of(rows, name=..., recipe=..., **spec)` -> Step"""
    step = Step()
    stock_loss = SFTTrainer.compute_loss

    def compute_loss(
        self: Untyped, model: Untyped, inputs: Untyped, *rest: Untyped, **named: Untyped
    ) -> Untyped:
        step.batches.append(dict(inputs))
        return stock_loss(self, model, inputs, *rest, **named)

    def before_the_optimiser(self: Untyped, *args: Untyped, model: Untyped, **_: Untyped) -> None:
        named = model.named_parameters()
        step.gradients = {n: p.grad.clone() for n, p in named if p.requires_grad}

    monkeypatch.setattr(SFTTrainer, "compute_loss", compute_loss)
    monkeypatch.setattr(RunCallback, "on_pre_optimizer_step", before_the_optimiser, raising=False)
    attach = with_random_b(adapters.attach_lora)
    monkeypatch.setattr("tunesmith_worker.trainer.load.attach_lora", attach)

    def run(rows: Untyped, **settings: Untyped) -> Step:
        nonlocal step
        step = Step()
        folder = make_run(rows, **settings)
        assert main(folder) == 0
        (step.loss,) = losses(folder)
        return step

    return run


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("model", ["tiny-math", "stories260K"])
def test_gradients_equal_stocks(
    step_of: Untyped, shared_data: Path, model: str, tuning: str
) -> None:
    lines = (shared_data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines[:40]]
    settings = {"model_path": str(shared_data / "models" / model)}
    recipe = RECIPE | {"tuning": tuning}
    stock = step_of(rows, name="stock", recipe=recipe | {"patches": "off"}, **settings)
    ours = step_of(rows, name="ours", recipe=recipe, **settings)

    assert [len(batch["input_ids"]) for batch in stock.batches] == [3, 3]
    assert not all(bool(batch["attention_mask"].all()) for batch in stock.batches), "no padding"
    assert [len(batch["input_ids"]) for batch in ours.batches] == [1, 1]
    assert not any("attention_mask" in batch for batch in ours.batches)
    assert sum(len(batch["cu_seq_lens_q"]) - 1 for batch in ours.batches) == 6

    assert ours.loss == pytest.approx(stock.loss, rel=1e-6)
    assert all(bool(gradient.any()) for gradient in stock.gradients.values())
    assert_same_gradients(ours.gradients, stock.gradients)
