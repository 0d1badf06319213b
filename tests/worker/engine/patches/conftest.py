"""Fixture of a model that is loaded as in the trainer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tunesmith_worker.engine.model.base_model import load_base
from tunesmith_worker.rundir.plan import LoadPlan
from tunesmith_worker.rundir.spec import read_spec


@pytest.fixture
def tiny_bf16(make_run: MakeRun) -> Any:  # Any: transformers is not typed
    """Load the tiny model for LoRA in bf16."""
    spec = read_spec(make_run([], recipe={"precision": "bf16"}, name="tiny-bf16"))
    return load_base(spec, LoadPlan(precision="bf16")).model
