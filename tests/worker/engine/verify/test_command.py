"""`python -m tunesmith_worker.engine.verify`: exit status and messages."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS
from tunesmith_worker.engine.verify import __main__ as command
from tunesmith_worker.trainer.run import main

from . import faults


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["verify", *map(str, arguments)])
    return command.main()


def test_the_command_tells_equal_from_wrong_and_from_not_comparable(
    make_run: MakeRun,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = make_run(QUESTIONS, recipe={"max_steps": 1, "per_device_train_batch_size": 4})
    assert main(trained) == 0
    adapter = tmp_path / "download"
    shutil.copytree(trained / "adapter", adapter)
    capsys.readouterr()

    assert run(monkeypatch, adapter, "--base", tiny_model) == 0
    assert capsys.readouterr().out.startswith("verified: the logits of the model loaded")
    assert run(monkeypatch, adapter, "--base", tiny_model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True

    assert run(monkeypatch, adapter, "--base", tmp_path / "nowhere") == 2
    assert "--base PATH" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path / "nowhere") == 2
    assert "folder not found" in capsys.readouterr().err

    faults.double_alpha(adapter)
    assert run(monkeypatch, adapter, "--base", tiny_model) == 1
    err = capsys.readouterr().err
    assert "error: the files are not the trained model: adapter_config.json has " in err
    (adapter / "verification.json").unlink()
    assert run(monkeypatch, adapter, "--base", tiny_model, "--json") == 2
    output = capsys.readouterr()
    assert json.loads(output.out)["verified"] is None
    assert "has no verification.json" in output.err
