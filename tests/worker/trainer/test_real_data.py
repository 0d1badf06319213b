"""A real small model on real data learns. Needs the project's shared data."""

from __future__ import annotations

import json
from pathlib import Path

from tests.worker.conftest import MakeRun
from tests.worker.runs import losses, read_result
from tunesmith_worker.trainer.data.validate import validate_file
from tunesmith_worker.trainer.run import main


def test_gsm8k_with_tiny_math_learns(make_run: MakeRun, shared_data: Path) -> None:
    lines = (shared_data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    recipe = {"max_steps": 16, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    run = make_run(
        [json.loads(line) for line in lines[:64]],
        recipe={**recipe, "learning_rate": 2e-3},
        model_path=str(shared_data / "models" / "tiny-math"),
    )
    assert main(run) == 0
    found = losses(run)
    assert sum(found[-4:]) < sum(found[:4]) - 0.4
    assert read_result(run).outcome == "succeeded"


def test_the_shared_files_are_valid(shared_data: Path) -> None:
    for name in ("gsm8k/train.jsonl", "synthetic/heldout.jsonl", "chat/alpaca_200.json"):
        found = validate_file(shared_data / name, name)
        assert found.ok, found.problems
        assert found.rows >= 200
