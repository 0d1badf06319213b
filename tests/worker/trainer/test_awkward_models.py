"""Full tuning of what released models come with: several templates, odd generation settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import transformers

from tests.tiny_model import CHATML
from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

FULL = {"tuning": "full", "max_steps": 2, "per_device_train_batch_size": 2}


@pytest.fixture
def own_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(tiny_model, tmp_path / "own"))


def test_a_tokenizer_with_several_templates_is_saved_with_all_of_them(
    make_run: MakeRun, own_model: Path
) -> None:
    (own_model / "additional_chat_templates").mkdir()
    (own_model / "additional_chat_templates" / "tool_use.jinja").write_text(CHATML + "tools")
    run = make_run(QUESTIONS, recipe=FULL, model_path=str(own_model))
    assert main(run) == 0
    assert all(path.is_file() for path in (run / "adapter").iterdir())
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "adapter")
    assert tokenizer.chat_template == {"default": CHATML, "tool_use": CHATML + "tools"}


def test_a_temperature_without_sampling_does_not_cost_the_run(
    make_run: MakeRun, own_model: Path
) -> None:
    settings = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": 2}
    (own_model / "generation_config.json").write_text(json.dumps(settings))
    run = make_run(QUESTIONS, recipe=FULL, model_path=str(own_model))
    assert main(run) == 0
    saved = json.loads((run / "adapter" / "generation_config.json").read_text())
    assert (saved["do_sample"], saved["temperature"]) == (True, 0.6)


def test_what_cannot_be_saved_fails_before_the_first_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, folder: str, **options: object) -> None:
        raise ValueError("cannot be written")

    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", refuse)
    run = make_run(QUESTIONS, recipe=FULL)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert "cannot be written" in error.message
    assert losses(run) == []


def test_a_small_data_set_does_not_drown_in_checkpoints(make_run: MakeRun) -> None:
    recipe = {"max_steps": 20, "per_device_train_batch_size": 2, "lora": {"r": 2}}
    run = make_run(QUESTIONS[:2], recipe=recipe)
    assert main(run) == 0
    assert len(event_data(run, EventKind.CHECKPOINT)) == 10


def test_the_last_step_is_judged_too(make_run: MakeRun) -> None:
    recipe = {"max_steps": 5, "eval_steps": 3, "lora": {"r": 2}}
    run = make_run(QUESTIONS, valid=QUESTIONS[:2], recipe=recipe)
    assert main(run) == 0
    judged = [p["step"] for p in event_data(run, EventKind.METRICS) if "valid_loss" in p]
    assert judged == [3, 5]
