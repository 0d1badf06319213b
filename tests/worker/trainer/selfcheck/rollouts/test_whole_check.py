"""The self-check of a reinforcement run from end to end, with TRL's own trainer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
import trl

from tests.worker.runs import event_data, read_events
from tunesmith_schema import ErrorCategory, ErrorCode, EventKind
from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.selfcheck import self_check
from tunesmith_worker.trainer.selfcheck.check_context import ReinforcementContext
from tunesmith_worker.trainer.selfcheck.rollout_checks import reinforcement_checks

from .engines import WithoutAdapter
from .subjects import TEXTS, TOKENIZER, make_subject

Untyped = Any  # Any: transformers and TRL are not typed


@pytest.fixture
def ready(tmp_path: Path) -> Callable[..., ReinforcementContext]:
    """`ready(**given)`: a run with a trainer that could take a step."""

    def make(**given: Untyped) -> ReinforcementContext:
        subject = make_subject(**given)
        config = trl.GRPOConfig(
            output_dir=str(tmp_path / "trainer"),
            learning_rate=1e-4,
            max_steps=10,
            per_device_train_batch_size=4,
            num_generations=4,
            use_cpu=True,
            bf16=False,
            report_to="none",
            **{RECOMPUTE: False},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TRL's, of what we do not use
            trainer = trl.GRPOTrainer(
                model=subject.model,
                reward_funcs=lambda completions, **_: [0.0] * len(completions),
                args=config,
                train_dataset=datasets.Dataset.from_list([{"prompt": one} for one in TEXTS]),
                processing_class=TOKENIZER,
            )
        folder = tmp_path / "run"
        (folder / "checkpoints").mkdir(parents=True)
        plan: Untyped = SimpleNamespace(total_steps=10)
        return replace(subject, trainer=trainer, train_plan=plan, folder=folder)

    return make


def test_every_check_passes_and_is_told_in_one_event(
    ready: Callable[..., ReinforcementContext],
) -> None:
    subject = ready()
    events = EventLog(subject.folder / "events.jsonl")
    self_check(subject, events, reinforcement_checks())
    (checks,) = [
        one["checks"] for one in event_data(subject.folder, EventKind.MESSAGE) if "checks" in one
    ]
    assert {name: one["state"] for name, one in checks.items()} == {
        **dict.fromkeys(
            (
                "prompts",
                "rollout_requests",
                "stop_tokens",
                "trained_parameters",
                "optimizer",
                "weights",
                "embeddings",
                "positions",
                "checkpoint_directory",
                "prompts_seen",
                "weights_kept",
                "rollout_rows_apart",
                "rollout_equals_stock",
                "rollout_equals_training",
                "adapter_acts",
                "patched_equals_stock",
                "sampling_distribution",
                "completions_end",
                "rollout_follows_weights",
            ),
            "passed",
        ),
        "fresh_adapter": "not_applicable",
    }
    (message,) = [e.message for e in read_events(subject.folder) if "self-check:" in e.message]
    assert "log-probs of rollouts match the stock model within " in message
    assert "1 do not apply (fresh_adapter" in message


def test_a_fault_ends_the_run_with_its_cause(ready: Callable[..., ReinforcementContext]) -> None:
    subject = ready(engine=WithoutAdapter)
    before = torch.get_rng_state()
    with pytest.raises(RunError) as raised:
        self_check(subject, EventLog(subject.folder / "events.jsonl"), reinforcement_checks())
    error = raised.value.failure
    assert error.code == ErrorCode.SELF_CHECK_FAILED
    assert error.category == ErrorCategory.INFRASTRUCTURE
    assert error.message.startswith(
        "Self-check before the first step: rollout_equals_stock: adapter not used"
    )
    assert error.hint
    assert torch.equal(torch.get_rng_state(), before)


def test_it_can_be_left_out(ready: Callable[..., ReinforcementContext]) -> None:
    subject = ready(engine=WithoutAdapter, self_check=False)
    self_check(subject, EventLog(subject.folder / "events.jsonl"), reinforcement_checks())
