"""The correction for an engine with other log-probs than the trainer's: TRL's ratios and losses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices
from tunesmith_worker.trainer.methods.engine_mismatch import (
    MismatchCorrection,
    Mode,
    resolve_mode,
)
from tunesmith_worker.trainer.methods.groups import GroupRow
from tunesmith_worker.trainer.run import main

from .sides import Task, make_task, ours, stock, train
from .test_exactness import BASE, GRPO
from .test_messages import LENGTH, ROWS
from .test_stock_losses import InParts, by_length, model, tokenizer, with_lora

__all__ = ["model", "tokenizer"]  # fixtures

Untyped = Any  # Any: transformers is not typed
MODES: tuple[Mode, ...] = get_args(Mode)


def noisy(ids: Sequence[int]) -> list[float]:
    """Log-probs of an engine that computes roughly: the ratios lie on both sides of the limit."""
    draw = random.Random(str(ids))
    return [draw.uniform(-6.5, -4.0) for _ in ids]


def with_ratios(trainer: Untyped, mode: Mode) -> Untyped:
    """Make TRL correct, although its completions come from no vLLM."""
    trainer.use_vllm, trainer.vllm_importance_sampling_mode = True, mode
    return trainer


def recorded(trainer: Untyped) -> list[torch.Tensor]:
    """Return a list that receives TRL's ratios."""
    ratios: list[torch.Tensor] = []
    score: Callable[..., Untyped] = trainer._generate_and_score_completions

    def scored(inputs: Untyped) -> Untyped:
        batch = score(inputs)
        ratios.append(batch["importance_sampling_ratio"])
        return batch

    trainer._generate_and_score_completions = scored
    return ratios


def gradients(trainer: Untyped) -> list[torch.Tensor]:
    """Return a list that receives the gradient of each step."""
    found: list[torch.Tensor] = []
    step: Callable[..., torch.Tensor] = trainer.training_step

    def training_step(*given: Untyped, **named: Untyped) -> torch.Tensor:
        loss = step(*given, **named)
        parts = [one.grad.flatten() for one in trainer.model.parameters() if one.requires_grad]
        found.append(torch.cat(parts).clone())
        return loss

    trainer.training_step = training_step
    return found


@pytest.mark.parametrize(
    ("mode", "recipe", "parts"),
    [
        *((mode, {}, 1) for mode in MODES),
        ("sequence_mask", {"num_iterations": 3}, 2),
        ("token_truncate", {"loss_type": "vespo"}, 1),
        ("token_mask", {"beta": 0.2, "loss_type": "grpo"}, 3),
    ],
)
def test_losses_and_gradients_are_those_of_trl(
    model: Untyped, tokenizer: Untyped, tmp_path: Path, mode: Mode, recipe: Any, parts: int
) -> None:
    task, adapted = replace(make_task(by_length), log_probs=noisy), with_lora(model).double()
    given = {"num_iterations": 2, **recipe}
    steps = given["num_iterations"]
    right = with_ratios(stock(adapted, tokenizer, task, tmp_path, steps=steps, **given), mode)
    ratios, their_gradients = recorded(right), gradients(right)
    expected = train(right)
    own = ours(adapted, tokenizer, task, tmp_path, steps=steps, importance_sampling=mode, **given)
    if parts > 1:
        own.memory = InParts(parts)  # type: ignore[assignment]  # see InParts
    own_gradients = gradients(own)
    assert train(own) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert len(own_gradients) == len(their_gradients) == steps
    assert float(their_gradients[0].norm()) > 0.01
    for mine, theirs in zip(own_gradients, their_gradients, strict=True):
        assert float((mine - theirs).norm()) <= 1e-5 * float(theirs.norm())
    assert not own.use_vllm
    limited = torch.cat([ratio.flatten() for ratio in ratios])
    end = 0.0 if mode.endswith("mask") else 3.0
    assert 0 < int((limited == end).sum()) < len(limited), "no ratio reached the limit"


@pytest.mark.parametrize("mode", MODES)
def test_a_skipped_row_has_the_ratio_1_and_is_in_no_metric(mode: Mode) -> None:
    correction = MismatchCorrection(mode)
    rows = [GroupRow((1,), (2, 3)), GroupRow((1,), (2, 3), skip=True)]
    inputs = {
        "completion_mask": torch.ones(2, 2),
        "sampling_per_token_logps": torch.tensor([[-1.0, -1.0], [-5.0, -5.0]]),
    }
    log_probs = torch.tensor([[-0.5, -1.0], [0.0, 0.0]])
    ratio = correction.ratio(rows, log_probs, inputs)
    assert ratio[1].tolist() == [1.0] * ratio.shape[1]
    assert correction.metrics()["importance_ratio_max"] == pytest.approx(float(ratio[0, 0]))
    assert float(ratio[0, 0]) == pytest.approx(1.6487, abs=1e-4)


def test_without_a_correction_the_ratio_does_not_count(
    model: Untyped, tokenizer: Untyped, tmp_path: Path
) -> None:
    rough = replace(make_task(by_length), log_probs=noisy)
    plain: Task = make_task(by_length)
    losses = [train(ours(model, tokenizer, task, tmp_path, steps=2)) for task in (rough, plain)]
    assert losses[0] == losses[1]
    corrected = ours(
        model, tokenizer, rough, tmp_path, steps=2, importance_sampling="token_truncate"
    )
    assert train(corrected) != losses[0]


def test_a_run_logs_ratios(make_run: MakeRun) -> None:
    """Our engine's ratios are 1, so that nothing is masked and rewards stay as they are."""
    runs = {}
    for setting in ("auto", "sequence_mask"):
        recipe = BASE | {"grpo": GRPO, "max_steps": 2, "logging_steps": 1}
        recipe["rollout"] = {"importance_sampling": setting}
        runs[setting] = make_run(
            ROWS, recipe=recipe, method="reinforcement", grader=LENGTH, name=setting
        )
        assert main(runs[setting]) == 0, read_result(runs[setting]).error
    plain, corrected = (
        [point for point in event_data(run, EventKind.METRICS) if "reward" in point]
        for run in runs.values()
    )
    assert not any("importance_ratio" in point for point in plain)
    assert [point["reward"] for point in plain] == [point["reward"] for point in corrected]
    for point in corrected:
        assert point["importance_ratio"] == pytest.approx(1.0, abs=1e-4)
        assert point["importance_ratio_max"] == pytest.approx(1.0, abs=1e-3)
        assert point["importance_masked_share"] == 0.0


@pytest.mark.parametrize(
    ("setting", "engine", "loss", "mode"),
    [
        ("auto", "native", "dapo", None),
        ("auto", "vllm", "dapo", "sequence_mask"),
        ("auto", "vllm", "vespo", "token_truncate"),
        ("off", "vllm", "dapo", None),
        ("token_mask", "native", "vespo", "token_mask"),
    ],
)
def test_auto_corrects_for_vllm_alone(setting: Any, engine: Any, loss: Any, mode: Any) -> None:
    choices = Choices()
    assert resolve_mode(setting, engine, loss, choices) == mode
    assert [choice.name for choice in choices.made] == ["importance_sampling"] * (setting == "auto")


def test_vespo_refuses_a_second_ratio_of_whole_completions() -> None:
    with pytest.raises(RunError) as caught:
        resolve_mode("sequence_mask", "vllm", "vespo", Choices())
    assert caught.value.failure.param == "recipe.rollout.importance_sampling"
