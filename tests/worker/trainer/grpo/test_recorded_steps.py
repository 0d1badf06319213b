"""A reinforcement run whose decode steps are recorded, as on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.engine.rollout.tape import REFUSAL, Refusing, Tape
from tests.worker.runs import losses, read_events, read_result
from tests.worker.trainer.checkpoints.interrupted import weights_hash
from tunesmith_worker.engine.rollout import native
from tunesmith_worker.trainer.run import main

from .test_exactness import make


def trained(make_run: MakeRun, name: str) -> Path:
    run = make(make_run, name, {"save_steps": 100})
    assert main(run) == 0, read_result(run).error
    return run


def test_recorded_steps_train_the_same(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are counted. Weights after another rounding of the log-probs of a rollout, which does
    not take part in the loss."""
    usual = trained(make_run, "usual")
    monkeypatch.setattr(native, "recorder_for", lambda device: Tape())
    run = trained(make_run, "recorded")
    assert losses(run) == losses(usual)
    assert weights_hash(run) == weights_hash(usual)
    found = json.loads((run / "report.json").read_text())["rollouts"]
    assert 0 < found["graph_steps"] < found["decode_steps"]


def test_steps_that_cannot_be_recorded_are_told_of_once(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "recorder_for", lambda device: Refusing())
    run = trained(make_run, "refused")
    told = [one.message for one in read_events(run) if REFUSAL in one.message]
    assert told == [f"Decoding runs without CUDA graphs and takes longer: {REFUSAL}"]
    assert json.loads((run / "report.json").read_text())["rollouts"]["graph_steps"] == 0
