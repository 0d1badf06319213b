"""A fault that only training shows is named with its layer, at the first look that can see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_events
from tunesmith_schema import ErrorCode, EventKind
from tunesmith_worker.trainer.selfcheck.gradients import Unit, check_units
from tunesmith_worker.trainer.selfcheck.movement import Movement

from .planted import FULL, TEN, Plant, failure, trained

Untyped = Any  # Any: transformers is untyped
LAYER = "model.layers.1.self_attn.v_proj"


def of_layer(trainer: Untyped, layer: str = LAYER) -> list[torch.nn.Parameter]:
    return [p for name, p in trainer.model.named_parameters() if layer in name and p.requires_grad]


def frozen(trainer: Untyped) -> None:
    for parameter in of_layer(trainer):
        parameter.requires_grad_(False)


def frozen_later(trainer: Untyped) -> None:
    parameters, run = of_layer(trainer), trainer.training_step

    def training_step(*arguments: Untyped) -> Untyped:
        for parameter in parameters:
            parameter.requires_grad_(trainer.state.global_step < 4)
        return run(*arguments)

    trainer.training_step = training_step


def detached(trainer: Untyped) -> None:
    (layer,) = (m for name, m in trainer.model.named_modules() if name.endswith(LAYER))
    layer.lora_B["default"].register_forward_hook(lambda module, given, output: output.detach())


def zeroed(*layers: str) -> Plant:
    def plant(trainer: Untyped) -> None:
        for layer in layers:
            for parameter in of_layer(trainer, layer):
                parameter.register_hook(torch.zeros_like)

    return plant


def no_rate(trainer: Untyped) -> None:
    trainer.args.learning_rate = 0.0


def changed_optimizer(change: Callable[[torch.optim.Optimizer, Untyped], None]) -> Plant:
    def plant(trainer: Untyped) -> None:
        create = trainer.create_optimizer

        def create_optimizer(*arguments: Untyped) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = create(*arguments)
            change(optimizer, trainer)
            trainer.optimizer = optimizer
            return optimizer

        trainer.create_optimizer = create_optimizer

    return plant


def left_out(optimizer: torch.optim.Optimizer, trainer: Untyped) -> None:
    out = {id(parameter) for parameter in of_layer(trainer)}
    for group in optimizer.param_groups:
        group["params"] = [one for one in group["params"] if id(one) not in out]


def put_back(optimizer: torch.optim.Optimizer, trainer: Untyped) -> None:
    """Somebody restores one layer after each step."""
    before = [parameter.detach().clone() for parameter in of_layer(trainer)]

    def restore(*_: Untyped) -> None:
        for parameter, value in zip(of_layer(trainer), before, strict=True):
            parameter.data.copy_(value)

    optimizer.register_step_post_hook(restore)


def unlabelled(trainer: Untyped) -> None:
    collate = trainer.data_collator

    def collated(rows: Untyped) -> Untyped:
        batch = collate(rows)
        return {**batch, "labels": torch.full_like(batch["labels"], -100)}

    trainer.data_collator = collated


def no_loss(trainer: Untyped) -> None:
    compute = trainer.compute_loss
    trainer.compute_loss = lambda *given, **named: compute(*given, **named) * 0.0


def deaf_token(trainer: Untyped) -> None:
    """The row of one token that the rows use gets no gradient."""
    token = trainer.train_dataset[0]["input_ids"][-3]
    weight = trainer.model.get_input_embeddings().weight
    weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([token]), 0.0))


@pytest.mark.parametrize(
    ("plant", "recipe", "words"),
    [
        (frozen, TEN, f"gradient: {LAYER} is frozen: requires_grad is off"),
        (frozen_later, TEN, f"Step 10: gradient: {LAYER} is frozen"),
        (
            detached,
            {**TEN, "patches": "off"},
            f"Step 1: gradient: no gradient reaches {LAYER}: it is detached from the loss.",
        ),
        (
            zeroed(LAYER),
            TEN,
            f"gradient: the gradient of {LAYER} is exactly zero, but the gradients of other "
            "modules are not.",
        ),
        (zeroed(""), TEN, "Step 1: gradient: the gradients of all trained parameters are exactly"),
        (no_rate, TEN, "Step 1: learning_rate: the learning rate of 28 tensors has been 0"),
        (changed_optimizer(left_out), TEN, f"Step 1: movement: {LAYER} is not in the optimizer."),
        (changed_optimizer(put_back), TEN, f"Step 1: movement: {LAYER} did not move in 1 steps"),
        (unlabelled, TEN, "Step 1: loss: the loss is exactly 0, because no token"),
        (no_loss, TEN, "Step 1: loss: the loss of "),
        (frozen_later, FULL, f"Step 10: gradient: {LAYER}.weight is frozen"),
        (zeroed(LAYER), FULL, f"Step 1: gradient: the gradient of {LAYER}.weight is exactly zero"),
        (zeroed("model.norm"), FULL, "gradient of model.norm.weight is exactly zero"),
        (changed_optimizer(put_back), FULL, f"movement: {LAYER}.weight did not move in 1 steps"),
        (deaf_token, FULL, "some rows of model.embed_tokens get no gradient, although"),
        (
            zeroed("trainable_tokens"),
            {**TEN, "add_tokens": ["<new>"]},
            "some rows of model.embed_tokens get no gradient, although",
        ),
    ],
)
def test_a_planted_fault_is_named(
    make_run: MakeRun, plant: Plant, recipe: dict[str, Any], words: str
) -> None:
    rows = QUESTIONS
    if "add_tokens" in recipe:
        rows = [{**row, "answer": f"<new> {row['answer']}"} for row in QUESTIONS]
    run = make_run(rows, recipe=recipe)
    found = failure(run, plant)
    assert found.code == ErrorCode.SELF_CHECK_FAILED
    assert words in found.message
    assert found.hint


def test_a_kind_that_is_silent_in_every_layer_is_a_warning_at_step_10(make_run: MakeRun) -> None:
    """Rows of two tokens teach queries and keys nothing."""
    run = make_run(QUESTIONS, recipe=TEN)
    trained(run, zeroed("k_proj"))
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    assert len(warnings) == 1
    assert "Step 10: gradient: the gradient of model.layers.*.self_attn.k_proj is" in warnings[0]


def test_a_module_outside_the_layers_without_a_gradient_is_an_error() -> None:
    largest: dict[str, float | None] = {"model.layers.0.mlp": 1.0, "model.norm": 0.0}
    units = [Unit(name=n, parameters={n: torch.nn.Parameter(torch.zeros(1))}) for n in largest]
    (finding,) = check_units(units, largest, set(), first=True)
    assert finding.level == "error"
    assert "the gradient of model.norm is exactly zero" in finding.message


def test_an_update_far_below_the_rate_is_named() -> None:
    parameter = torch.nn.Parameter(torch.zeros(8, 4))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.0)
    for share, faults in ((1.0, []), (0.1, ["movement"])):
        with torch.no_grad():
            parameter.zero_()
        optimizer.state.clear()
        parameter.grad = torch.full((8, 4), 1e-6)
        unit = Unit(name="one", parameters={"m.lora_B.default.weight": parameter})
        movement = Movement([unit], optimizer)
        movement.record_rates()
        optimizer.step()
        with torch.no_grad():
            parameter.mul_(share)
        found = list(movement.check(fresh=True))
        assert [one.check for one in found] == faults
    assert "one hardly moved: one by 9.9e-05 at most" in found[0].message


def test_self_check_off_leaves_the_guard_on(make_run: MakeRun) -> None:
    def plant(trainer: Untyped) -> None:
        of_layer(trainer)[0].register_hook(lambda grad: grad * float("nan"))

    run = make_run(QUESTIONS, recipe={**TEN, "self_check": False})
    assert failure(run, plant).code == ErrorCode.GRADIENT_NONFINITE
    assert event_data(run, EventKind.METRICS) == []
