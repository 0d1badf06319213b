"""Random numbers and callback states in a resume point; callbacks also under the class name of an
earlier version."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tunesmith_worker.rundir import resume_point as names
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.checkpoints.random_state import (
    random_numbers,
    restore_random_numbers,
)
from tunesmith_worker.trainer.checkpoints.state import SavedState
from tunesmith_worker.trainer.rollout_warnings import RolloutWarnings


def draws() -> list[tuple[float, ...]]:
    """Draw three normal numbers from each generator. Python and NumPy make two of them at once and
    keep the second."""
    return [
        tuple(random.gauss(0, 1) for _ in range(3)),
        tuple(np.random.normal(size=3).tolist()),
        tuple(torch.randn(3).tolist()),
    ]


def test_all_generators_continue_from_their_stored_state() -> None:
    draws()
    plain, tensors = random_numbers()
    stored = json.loads(json.dumps(plain)), {name: one.clone() for name, one in tensors.items()}
    expected = draws()
    assert draws() != expected
    restore_random_numbers(*stored)
    assert draws() == expected


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
