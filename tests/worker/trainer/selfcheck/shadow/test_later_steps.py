"""Faults that show only after the first step are named at the next look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_result
from tests.worker.trainer.selfcheck.planted import failure
from tests.worker.trainer.selfcheck.test_tripwires import of_layer
from tunesmith_schema import ErrorCode
from tunesmith_worker.trainer.methods.groups import GroupOrder
from tunesmith_worker.trainer.methods.grpo import GRPOTrainer
from tunesmith_worker.trainer.methods.reference import AdapterReference
from tunesmith_worker.trainer.run import main
from tunesmith_worker.trainer.selfcheck.shadow.data_order import DataOrder
from tunesmith_worker.trainer.selfcheck.shadow.relook import is_look

from .test_first_policy_step import FULL, make
from .test_first_step import FOUR

Untyped = Any  # Any: transformers and TRL are not typed


def same_rows(trainer: Untyped) -> None:
    """Every step gets the first step's rows."""
    collate, first = trainer.data_collator, []

    def collated(rows: Untyped) -> Untyped:
        first.append(rows)
        return collate(first[0])

    trainer.data_collator = collated


def smaller_rate_later(trainer: Untyped) -> None:
    """From the second step on, the rate is a thousandth."""
    run = trainer.training_step

    def training_step(*given: Untyped) -> Untyped:
        if trainer.state.global_step == 1:
            for group in trainer.optimizer.param_groups:
                group["lr"] /= 1000
        return run(*given)

    trainer.training_step = training_step


def no_clipping_later(trainer: Untyped) -> None:
    right = trainer._clip_grad_norm

    def clip(model: Untyped) -> Untyped:
        before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        norm = right(model)
        if trainer.state.global_step:
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            for grad, kept in zip(grads, before, strict=True):
                grad.copy_(kept)
        return norm

    trainer._clip_grad_norm = clip


def first_factor_restored(trainer: Untyped) -> None:
    """From the third step on, A of one layer is put back after each step."""
    create = trainer.create_optimizer
    values: list[list[torch.Tensor]] = []

    def restore(*_: Untyped) -> None:
        parameters = of_layer(trainer, "model.layers.1.self_attn.v_proj.lora_A")
        values.append([parameter.detach().clone() for parameter in parameters])
        if len(values) > 2:
            for parameter, value in zip(parameters, values[1], strict=True):
                parameter.data.copy_(value)

    def create_optimizer(*given: Untyped) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = create(*given)
        optimizer.register_step_post_hook(restore)
        return optimizer

    trainer.create_optimizer = create_optimizer


@pytest.mark.parametrize(
    ("plant", "recipe", "words"),
    [
        (same_rows, FOUR, "Step 2: data_order: the same rows each step: in 2 steps within 1 epoch"),
        (smaller_rate_later, FOUR, "Step 2: update: the learning rate of "),
        (
            no_clipping_later,
            {**FOUR, "max_grad_norm": 0.01},
            "Step 2: clipping: the gradient is not clipped as the recipe requires",
        ),
        (
            first_factor_restored,
            {**FOUR, "max_steps": 10},
            "Step 10: movement: model.layers.1.self_attn.v_proj.lora_A did not move",
        ),
    ],
)
def test_a_planted_fault_is_named(
    make_run: MakeRun, plant: Callable[[Untyped], None], recipe: dict[str, Any], words: str
) -> None:
    rows = [{**row, "answer": f"{row['answer']} {place}"} for place, row in enumerate(QUESTIONS)]
    found = failure(make_run(rows, recipe=recipe), plant)
    assert found.code == ErrorCode.SELF_CHECK_FAILED, found.message
    assert words in found.message
    assert found.hint


def policy_as_reference(patch: pytest.MonkeyPatch) -> None:
    """The adapter stays on while the reference runs."""
    right = AdapterReference.running

    @contextmanager
    def running(reference: Untyped) -> Iterator[None]:
        model = reference._model
        with right(reference):
            model.base_model.enable_adapter_layers()
            try:
                yield
            finally:
                model.base_model.disable_adapter_layers()

    patch.setattr(AdapterReference, "running", running)


def same_model_as_reference(patch: pytest.MonkeyPatch) -> None:
    right = GRPOTrainer.train

    def train(trainer: Untyped, **given: Untyped) -> Untyped:
        trainer.ref_model = trainer.model
        return right(trainer, **given)

    patch.setattr(GRPOTrainer, "train", train)


def same_prompts(patch: pytest.MonkeyPatch) -> None:
    right = GroupOrder.__iter__

    def wrong(order: Untyped) -> Untyped:
        size = order._per_step * order._generations
        found = list(right(order))
        yield from found[:size] * (len(found) // size)

    patch.setattr(GroupOrder, "__iter__", wrong)


RATE = {"learning_rate": 1e-2, "grpo": {"beta": 0.1}}
REFERENCE = "reference: the reference of the KL term is the policy, so the KL term is 0"


@pytest.mark.parametrize(
    ("plant", "recipe", "words"),
    [
        (policy_as_reference, RATE, REFERENCE),
        (same_model_as_reference, {**FULL, **RATE}, REFERENCE),
        (same_prompts, {}, "data_order: the same rows each step"),
    ],
)
def test_a_planted_fault_of_a_reinforcement_run_is_named(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    recipe: dict[str, Any],
    words: str,
) -> None:
    plant(monkeypatch)
    run = make(make_run, recipe)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == ErrorCode.SELF_CHECK_FAILED, error.message
    assert error.message.startswith(f"Step 2: {words}"), error.message


def test_looks_are_at_steps_2_and_10_and_every_50() -> None:
    assert [step for step in range(1, 201) if is_look(step)] == [2, 10, 50, 100, 150, 200]


def test_repeated_examples_of_the_data_are_no_alarm() -> None:
    data = datasets.Dataset.from_dict({"input_ids": [[1, 2], [1, 2], [3, 4], [5]]})
    order = DataOrder()
    order.add([(1, 2), (3, 4)], 0)
    order.add([(1, 2), (5,)], 0)
    assert not list(order.check(data))
    for _ in range(3):
        order.add([(1, 2)], 0)
    (finding,) = order.check(data)
    assert "one example was trained 3 times (at most 2 times is possible)" in finding.message
    order.add([(7,)], 0)
    order.add([(7,)], 1)
    assert not list(order.check(SimpleNamespace(column_names=["prompt", "row"])))
