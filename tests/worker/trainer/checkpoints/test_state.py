"""Callback states in a resume point, also under the class name of an earlier version."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from tunesmith_worker.rundir import resume_point as names
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.checkpoints.state import SavedState
from tunesmith_worker.trainer.rollout_warnings import RolloutWarnings


@pytest.mark.parametrize("stored_as", ["RolloutWarnings", "RolloutAlarms"])
def test_a_callback_continues_from_its_stored_state(tmp_path: Path, stored_as: str) -> None:
    watched = {"told": ["kl"], "in_a_row": {"entropy": 4}, "first": [1.0, 2.0]}
    states = {stored_as: {"args": {}, "attributes": {"watched": watched}}}
    (tmp_path / names.RUN_STATE).write_text(json.dumps({"counted": {}}))
    (tmp_path / names.TRAINER_STATE).write_text(json.dumps({"stateful_callbacks": states}))
    save_file({"sums": torch.zeros(1)}, tmp_path / names.RUN_TENSORS)
    warnings = RolloutWarnings(
        EventLog(tmp_path / "events.jsonl"),
        "fp32",
        groups_with_spread=lambda: 1,
        will_resume=lambda: False,
    )
    trainer = SimpleNamespace(
        callback_handler=SimpleNamespace(callbacks=[warnings]),
        load_state_dict=lambda plain, tensors: None,
    )
    SavedState(tmp_path).load_counters(trainer)
    assert warnings.watched == watched
