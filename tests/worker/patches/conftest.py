"""A model as the trainer loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunesmith_schema import Recipe, RunSpec
from tunesmith_worker.model import load_base
from tunesmith_worker.plan import LoadPlan


@pytest.fixture
def tiny_bf16(tiny_model: Path) -> Any:  # Any: transformers is not typed
    """The tiny model, loaded for LoRA in bf16."""
    spec = RunSpec(
        job_id="ftjob-1",
        attempt=1,
        model="acme/tiny",
        model_path=str(tiny_model),
        training_file="data/train.jsonl",
        seed=7,
        recipe=Recipe(precision="bf16"),
    )
    return load_base(spec, LoadPlan(precision="bf16")).model
