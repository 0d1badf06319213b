"""The first step of a reinforcement run is compared with plain torch: faults of rewards, advantages
and loss are named, and good runs give no alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tests.worker.trainer.checkpoints.interrupted import weights_hash
from tests.worker.trainer.grpo.test_exactness import ASKED, BASE, GRPO, LENGTH
from tunesmith_schema import ErrorCode, EventKind
from tunesmith_worker.trainer.methods.groups import GroupOrder
from tunesmith_worker.trainer.methods.grpo import GRPOTrainer
from tunesmith_worker.trainer.methods.rollouts import RolloutRunner
from tunesmith_worker.trainer.rewards import Graded
from tunesmith_worker.trainer.rewards.grading import Round
from tunesmith_worker.trainer.run import main

Untyped = Any  # Any: TRL is not typed
Plant = Callable[[pytest.MonkeyPatch], None]
FULL: dict[str, Any] = {"tuning": "full", "lora": None}


def make(make_run: MakeRun, recipe: dict[str, Any], name: str = "run") -> Path:
    given = {**BASE, "self_check": True, "max_steps": 2, "learning_rate": 1e-3, **recipe}
    given["grpo"] = {**GRPO, **given.get("grpo", {})}
    return make_run(ASKED, recipe=given, name=name, method="reinforcement", grader=LENGTH)


def changed_batch(change: Callable[[Untyped], None]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        right = GRPOTrainer._generate_and_score_completions

        def wrong(trainer: Untyped, inputs: Untyped) -> Untyped:
            batch = right(trainer, inputs)
            change(batch)
            return batch

        patch.setattr(GRPOTrainer, "_generate_and_score_completions", wrong)

    return plant


def flip(batch: Untyped) -> None:
    batch["advantages"].neg_()


def roll_completions(batch: Untyped) -> None:
    rows = batch["rows"]
    batch["rows"] = [*rows[1:], rows[0]]


def shifted(patch: pytest.MonkeyPatch) -> None:
    """Rewards of the recorded grades, each at the next completion."""
    right = RolloutRunner.grade

    def wrong(runner: Untyped, rollout: Untyped) -> Untyped:
        rewards = right(runner, rollout)
        return [rewards[-1], *rewards[:-1]]

    patch.setattr(RolloutRunner, "grade", wrong)


def shifted_grades(patch: pytest.MonkeyPatch) -> None:
    """The recorded grades themselves are at the next completion."""
    right = Round.finish

    def wrong(one: Untyped) -> Untyped:
        graded = right(one)
        return [graded[-1], *graded[:-1]]

    patch.setattr(Round, "finish", wrong)


def transposed(patch: pytest.MonkeyPatch) -> None:
    right = GRPOTrainer._calculate_rewards

    def wrong(trainer: Untyped, *given: Untyped) -> torch.Tensor:
        rewards: torch.Tensor = right(trainer, *given)
        groups = trainer.plan.prompts_per_step
        return rewards.view(groups, -1).T.reshape(-1, 1)

    patch.setattr(GRPOTrainer, "_calculate_rewards", wrong)


def interleaved(patch: pytest.MonkeyPatch) -> None:
    """The completions of a prompt are not adjacent."""
    right = GroupOrder.__iter__

    def wrong(order: Untyped) -> Untyped:
        size = order._per_step * order._generations
        found = list(right(order))
        for start in range(0, len(found), size):
            step = torch.tensor(found[start : start + size])
            yield from step.view(order._per_step, -1).T.flatten().tolist()

    patch.setattr(GroupOrder, "__iter__", wrong)


def scaled_loss(factor: float) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        right = GRPOTrainer.compute_loss
        patch.setattr(GRPOTrainer, "compute_loss", lambda *a, **k: right(*a, **k) * factor)

    return plant


FAULTS: dict[str, tuple[Plant, dict[str, Any], str]] = {  # Any: JSON
    "flipped advantage": (changed_batch(flip), {}, "advantages: flipped sign: "),
    "flipped loss": (scaled_loss(-1.0), {}, "first_step: flipped sign: the step lowers"),
    "shifted rewards": (shifted, {}, "advantages: rewards shifted by 1: "),
    "shifted grades": (shifted_grades, {}, "rewards: rewards shifted by 1: "),
    "transposed groups": (transposed, {}, "advantages: transposed groups: "),
    "interleaved prompts": (interleaved, {}, "advantages: transposed groups: "),
    "shifted completions": (changed_batch(roll_completions), {}, "advantages: "),
    "wrong normaliser": (
        scaled_loss(0.5),
        {},
        "first_step: wrong normaliser: the gradient is 0.5 times the correct gradient",
    ),
    "wrong normaliser with dropout": (
        scaled_loss(0.5),
        {"lora": {"r": 4, "lora_dropout": 0.2}},
        "first_step: wrong normaliser: the gradient is 0.5 times the correct gradient",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plant, recipe, words = FAULTS[name]
    run = make(make_run, recipe)
    plant(monkeypatch)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == ErrorCode.SELF_CHECK_FAILED, error.message
    assert error.message.startswith(f"Step 1: {words}"), error.message
    assert error.hint


GOOD: dict[str, dict[str, Any]] = {  # Any: JSON
    "dapo": {},
    "grpo and reference": {"grpo": {"loss_type": "grpo", "beta": 0.1}},
    "bnpo in parts": {"grpo": {"loss_type": "bnpo"}, "gradient_accumulation_steps": 2},
    "dr_grpo, three times": {"grpo": {"loss_type": "dr_grpo", "num_iterations": 3, "beta": 0.1}},
    "cispo": {"grpo": {"loss_type": "cispo", "temperature": 0.7}},
    "sequence": {"grpo": {"importance_sampling_level": "sequence", "scale_rewards": "batch"}},
    "not scaled, masked": {"grpo": {"scale_rewards": "none", "mask_truncated_completions": True}},
    "dropout": {"lora": {"r": 4, "lora_dropout": 0.2}, "grpo": {"beta": 0.1}},
    "bf16": {"precision": "bf16"},
    "full": {**FULL, "max_grad_norm": 0.01, "grpo": {"beta": 0.1}},
    "biases": {"lora": {"r": 4, "bias": "all"}, "grpo": {"beta": 0.1}},
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_run_gives_no_alarm(make_run: MakeRun, name: str) -> None:
    run = make(make_run, GOOD[name])
    assert main(run) == 0, read_result(run).error
    (detail,) = [d["first_step"] for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    assert detail.startswith(
        "advantages match the recorded rewards; rewards of length were graded again for 6 "
        "of 6 completions; all 6 completions"
    )
    assert "loss, gradient norm and gradient equal plain torch" in detail
    assert ("repetition of the step without dropout" in detail) == (name == "dropout")


def test_a_grader_that_is_not_deterministic_gives_a_warning(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(make_run, {})

    def other(runner: Untyped, rollout: Untyped, place: int) -> Untyped:
        return Graded(rewards=(0.123 * place,), scores={})

    monkeypatch.setattr(RolloutRunner, "grade_again", other)
    assert main(run) == 0, read_result(run).error
    warnings = [e.message for e in read_events(run) if e.level == "warn"]
    assert any("rewards: the grader is not deterministic" in text for text in warnings), warnings


def test_rewards_that_are_not_graded_again_are_named(make_run: MakeRun, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def short(completions, **_):\n    return [-len(one) for one in completions]\n")
    run = make(make_run, {})
    assert main(run, rewards=[f"{file}:short"]) == 0, read_result(run).error
    (detail,) = [d["first_step"] for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    assert (
        "rewards of length were graded again for 6 of 6 completions; rewards of short were not "
        "graded again, because local reward functions may have side effects"
    ) in detail


def test_a_run_is_the_same_to_the_bit_without_it(make_run: MakeRun) -> None:
    hashes = set()
    for checked in (True, False):
        recipe = {"self_check": checked, "lora": {"r": 4, "lora_dropout": 0.2}}
        run = make(make_run, {**recipe, "grpo": {"beta": 0.1}}, name=f"checked-{checked}")
        assert main(run) == 0, read_result(run).error
        hashes.add(weights_hash(run))
    assert len(hashes) == 1
