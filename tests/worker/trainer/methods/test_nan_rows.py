"""A gradient that is not finite changes no weight, and the row that made it is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses
from tests.worker.trainer.selfcheck.planted import failure, trained
from tunesmith_schema import ErrorCategory, ErrorCode, EventKind
from tunesmith_worker.trainer import read_back
from tunesmith_worker.trainer.methods.nan_guard import NanGuard

Untyped = Any  # Any: transformers is untyped
ODD = {"question": "How much is Z?", "answer": "A letter."}
ROWS = [*QUESTIONS[:9], ODD, *QUESTIONS[9:]]
STEPS: dict[str, Any] = {  # Any: JSON
    "max_steps": 12,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "packing": False,
}
FULL: dict[str, Any] = {"tuning": "full", "lora": None}
PRECISIONS = ("fp32", "bf16", "bf16_split_master", "bf16_sr8")


def odd_embedding(value: float) -> Callable[[Untyped], None]:
    """The token that only row 10 has comes out of the embedding as `value`."""

    def plant(trainer: Untyped) -> None:
        odd = trainer.processing_class.convert_tokens_to_ids("Z")

        def hook(module: Untyped, given: Untyped, output: torch.Tensor) -> torch.Tensor:
            return torch.where((given[0] == odd)[..., None], value, output)

        trainer.model.get_input_embeddings().register_forward_hook(hook)

    return plant


def odd_gradient(trainer: Untyped) -> None:
    """Backward through that token, and only backward, gives NaN."""
    odd = trainer.processing_class.convert_tokens_to_ids("Z")

    def hook(module: Untyped, given: Untyped, output: torch.Tensor) -> None:
        bad = (given[0] == odd)[..., None]
        output.register_hook(lambda grad: torch.where(bad, float("nan"), grad))

    trainer.model.get_input_embeddings().register_forward_hook(hook)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"logging_steps": 12},
        {"packing": True},
        {"patches": "off"},
        {"lora": {"lora_dropout": 0.2}},
        {**FULL, "precision": "bf16_split_master"},
        {**FULL, "precision": "bf16_sr8", "max_grad_norm": 0},
    ],
    ids=["lora", "rarely-logged", "packed", "stock", "dropout", "error-word", "sr8"],
)
def test_the_row_the_token_and_the_layer_are_named(
    make_run: MakeRun, recipe: dict[str, Any], value: float
) -> None:
    run = make_run(ROWS, recipe={**STEPS, **recipe})
    found = failure(run, odd_embedding(value))
    assert (found.code, found.category) == (ErrorCode.LOSS_NONFINITE, ErrorCategory.DATA)
    assert "The cause is row 10 of train.jsonl, with a loss of nan." in found.message
    assert "comes from model.embed_tokens, at token " in found.message
    assert "('Z', id " in found.message
    assert "rows of the step are finite" in found.message
    assert found.hint
    assert all(loss is not None and math.isfinite(loss) for loss in losses(run))


@pytest.mark.parametrize("name", [*PRECISIONS, "lora"])
def test_weights_and_moments_stay_those_before_the_bad_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Bit for bit, although the flag is read nine steps later only."""
    # The read-back would put the saved weights, rounded from the optimizer's, into the model.
    monkeypatch.setattr(read_back, "read_back", lambda *_: True)
    states = []
    how = {} if name == "lora" else {**FULL, "precision": name}
    for bad_step in (None, 3):
        steps = 2 if bad_step is None else 12
        recipe = {
            **STEPS,
            **how,
            "max_steps": steps,
            "logging_steps": 12,
            "lr_scheduler_type": "constant",
        }
        run = make_run(QUESTIONS, recipe=recipe, name=f"{name}-{steps}")

        def plant(trainer: Untyped, bad_step: int | None = bad_step) -> None:
            *_, parameter = (p for p in trainer.model.parameters() if p.requires_grad)

            def hook(grad: torch.Tensor) -> torch.Tensor:
                if trainer.state.global_step + 1 == bad_step:
                    grad = grad.clone()
                    grad.view(-1)[7] = float("inf")
                return grad

            parameter.register_hook(hook)

        trainer = trained(run, plant)
        optimizer = trainer.optimizer.optimizer
        weights = [p.detach() for p in trainer.model.parameters()]
        moments = [
            value
            for state in optimizer.state_dict()["state"].values()
            for key, value in state.items()
            if key != "step"
        ]
        states.append([*weights, *moments])
    assert len(states[0]) == len(states[1]) > 2
    for expected, found in zip(*states, strict=True):
        assert torch.equal(expected.view(torch.uint8), found.view(torch.uint8))
        assert found.isfinite().all()


def test_a_gradient_that_is_not_finite_under_a_finite_loss(make_run: MakeRun) -> None:
    found = failure(make_run(ROWS, recipe={**STEPS, **FULL}), odd_gradient)
    assert (found.code, found.category) == (ErrorCode.GRADIENT_NONFINITE, ErrorCategory.DATA)
    assert "row 10 of train.jsonl" in found.message
    assert "The loss is finite" in found.message
    assert "the gradient of model.embed_tokens.weight is not" in found.message


def test_what_does_not_repeat_is_the_hosts_affair(make_run: MakeRun) -> None:
    def plant(trainer: Untyped) -> None:
        judge = trainer.guard.check_norm

        def once(norm: torch.Tensor) -> None:
            judge(norm * float("nan") if trainer.state.global_step == 3 else norm)

        trainer.guard.check_norm = once

    run = make_run(QUESTIONS, recipe=STEPS)
    found = failure(run, plant)
    assert found.category == ErrorCategory.INFRASTRUCTURE
    assert found.message.startswith("Step 4: the gradient was not finite, but rerunning its 4 rows")
    assert len(event_data(run, EventKind.METRICS)) == 3


def test_rows_that_only_do_it_together_are_said_to(make_run: MakeRun) -> None:
    def plant(trainer: Untyped) -> None:
        def hook(module: Untyped, given: Untyped, output: torch.Tensor) -> torch.Tensor:
            return output / float(given[0].numel() < 40)

        trainer.model.get_input_embeddings().register_forward_hook(hook)

    found = failure(make_run(QUESTIONS, recipe={**STEPS, "self_check": False}), plant)
    assert (found.code, found.category) == (ErrorCode.GRADIENT_NONFINITE, ErrorCategory.USER)
    assert "Each row alone has a finite gradient, but all 4 rows together have not" in found.message


def test_every_row_at_once_is_not_the_data(make_run: MakeRun) -> None:
    def plant(trainer: Untyped) -> None:
        def hook(module: Untyped, given: Untyped, output: torch.Tensor) -> torch.Tensor:
            return output / float(trainer.state.global_step < 2)

        trainer.model.get_input_embeddings().register_forward_hook(hook)

    found = failure(make_run(QUESTIONS, recipe=STEPS), plant)
    assert (found.code, found.category) == (ErrorCode.LOSS_NONFINITE, ErrorCategory.USER)
    assert "Step 3: " in found.message
    assert "Each of the step's 4 rows alone gives a non-finite loss" in found.message
    assert found.param == "recipe.learning_rate"


def test_no_checkpoint_is_saved_after_a_bad_step(make_run: MakeRun) -> None:
    """Nobody logs, but saving looks as well; steps refused must not count as taken."""
    run = make_run(ROWS, recipe={**STEPS, "logging_steps": 12, "save_steps": 6, "max_steps": 6})
    failure(run, odd_embedding(float("nan")))
    assert event_data(run, EventKind.CHECKPOINT) == []
    run = make_run(ROWS, recipe={**STEPS, "logging_steps": 9, "max_steps": 6}, name="last")
    assert "row 10 of train.jsonl" in failure(run, odd_embedding(float("nan"))).message


@pytest.mark.parametrize("how", [{}, *({**FULL, "precision": one} for one in PRECISIONS)])
def test_a_good_run_is_bit_for_bit_the_run_without_a_guard(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    def result(name: str) -> list[torch.Tensor]:
        run = make_run(QUESTIONS, recipe={**STEPS, "max_steps": 5, **how}, name=name)
        trainer = trained(run, lambda trainer: None)
        state = trainer.optimizer.state_dict()["state"].values()
        tensors = [*trainer.model.parameters(), *(value for one in state for value in one.values())]
        return [torch.as_tensor(one).detach().reshape(-1) for one in tensors] + [
            torch.tensor(losses(run))
        ]

    guarded = result("guarded")
    monkeypatch.setattr(NanGuard, "watch", lambda *_: None)
    monkeypatch.setattr(NanGuard, "check_norm", lambda *_: None)
    for ours, plain in zip(guarded, result("plain"), strict=True):
        assert torch.equal(ours.view(torch.uint8), plain.view(torch.uint8))


def test_an_optimiser_that_would_take_a_nan_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    guard = NanGuard(torch.device("cpu"), lambda step: pytest.fail("no step was taken"))
    with pytest.raises(ValueError, match="SGD is not fused, so a NaN would reach the weights"):
        guard.watch(torch.optim.SGD([parameter]))
