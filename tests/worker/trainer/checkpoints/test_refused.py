"""Resume points that must not be used: damaged ones, and those of another run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_events, read_result
from tunesmith_schema import EventKind, RunSpec
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.verify_resume_point import ValidResumePoint
from tunesmith_worker.trainer.resume import check_steps_left, find_resume_point
from tunesmith_worker.trainer.run import main

from .interrupted import interrupt

RECIPE: dict[str, Any] = {
    "max_steps": 5,
    "per_device_train_batch_size": 4,
    "lora": {"r": 4},
    "self_check": False,
}


@pytest.fixture
def stopped(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with resume points of steps 2 and 3."""
    run = make_run(QUESTIONS, valid=QUESTIONS[:2], recipe=RECIPE)
    for step in (2, 3):
        assert interrupt(run, monkeypatch, stop=step) == 75
    return run


@pytest.fixture
def copied(stopped: Path, tmp_path: Path) -> Callable[[], Path]:
    """Gives a fresh copy of that run."""
    number = 0

    def copy() -> Path:
        nonlocal number
        number += 1
        return Path(shutil.copytree(stopped, tmp_path / f"copy-{number}"))

    return copy


def found(run: Path, **spec: Any) -> ValidResumePoint | None:  # Any: fields of the spec
    path = run / "spec.json"
    fields = json.loads(path.read_text())
    recipe = fields["recipe"] | spec.pop("recipe", {})
    path.write_text(json.dumps(fields | {"recipe": recipe} | spec))
    directory, read = RunDirectory(run), RunSpec.model_validate_json(path.read_bytes())
    return find_resume_point(directory, read, EventLog(directory.events))


def warnings_of(run: Path) -> list[str]:
    return [event.message for event in read_events(run) if event.level == "warn"]


def _truncate(point: Path) -> None:
    file = point / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _flip_a_bit(point: Path) -> None:
    content = bytearray((point / "trained.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (point / "trained.safetensors").write_bytes(content)


def _half_rename(point: Path) -> None:
    point.rename(point.with_name(f".{point.name}.part"))


def _cut_the_manifest(point: Path) -> None:
    (point / "manifest.json").write_text((point / "manifest.json").read_text()[:100])


def _from_the_future(point: Path) -> None:
    manifest = json.loads((point / "manifest.json").read_text())
    (point / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (_truncate, "optimizer.safetensors has"),
    "bit-flipped": (_flip_a_bit, "trained.safetensors was changed: its sha256 differs"),
    "half-renamed": (_half_rename, "the run ended while writing it"),
    "a file missing": (lambda point: (point / "run_state.json").unlink(), "file not found: "),
    "no manifest": (lambda point: (point / "manifest.json").unlink(), "manifest.json is missing"),
    "manifest cut off": (_cut_the_manifest, "manifest.json is damaged"),
    "another version's": (_from_the_future, "written by another version"),
    "renamed": (lambda point: point.rename(point.with_name("resume-4")), "is for another step: 3"),
}


def test_a_damaged_one_is_named_and_the_one_before_is_used(copied: Callable[[], Path]) -> None:
    for damage, why in DAMAGE.values():
        run = copied()
        damage(run / "checkpoints" / "resume-3")
        point = found(run)
        assert point is not None
        assert point.step == 2
        (said,) = warnings_of(run)
        assert said.startswith("checkpoints/")
        assert "resume-" in said
        assert why in said
        assert event_data(run, EventKind.RESUMED)[-1] == {"step": 2}
    assert main(run) == 0
    assert read_result(run).step == 5


def test_with_none_left_the_run_begins_anew_and_says_so(copied: Callable[[], Path]) -> None:
    run = copied()
    for step in (2, 3):
        _truncate(run / "checkpoints" / f"resume-{step}")
    assert found(run, attempt=2) is None
    assert len(warnings_of(run)) == 2
    assert event_data(run, EventKind.RESUMED)[-1] == {"step": 0}
    with pytest.raises(RunError, match="is missing or damaged"):
        found(run, forked=True)


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "recipe.learning_rate": ({"recipe": {"learning_rate": 0.5}}, 'changed from "auto" to 0.5'),
    "recipe.lora.r": ({"recipe": {"lora": {"r": 8}}}, "changed from 4 to 8"),
    "hyperparameters.n_epochs": ({"hyperparameters": {"n_epochs": 2}}, 'changed from "auto" to 2'),
    "seed": ({"seed": 8}, "changed from 7 to 8"),
    "model": ({"model": "acme/other"}, "changed from 'acme/tiny' to 'acme/other'"),
}


def test_a_changed_run_is_refused_by_the_field_that_changed(
    copied: Callable[[], Path], tiny_model: Path, tmp_path: Path
) -> None:
    for param, (spec, how) in CHANGED.items():
        with pytest.raises(RunError, match=f"{param}: .*{how}") as error:
            found(copied(), **spec)
        assert (error.value.failure.code, error.value.failure.param) == ("resume_mismatch", param)
    for file in ("training_file", "validation_file"):
        run = copied()
        with (run / "data" / f"{file[:5]}.jsonl").open("a") as data:
            data.write('{"question": "one more?", "answer": "yes"}\n')
        with pytest.raises(RunError, match=f"{file}: the .* file has changed"):
            found(run)
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    assert found(copied(), model_path=str(other)) is not None, "elsewhere, but the same"
    assert found(copied(), job_id="ftjob-2", attempt=9) is not None
    _flip_a_bit_of_the_base(other)
    with pytest.raises(RunError, match="the base model's files have changed"):
        found(copied(), model_path=str(other))


def test_a_fork_may_change_what_still_fits(copied: Callable[[], Path]) -> None:
    run = copied()
    recipe = {"learning_rate": 0.5, "max_steps": 6, "lr_scheduler_type": "constant"}
    assert found(run, forked=True, recipe=recipe, seed=8) is not None
    assert main(run) == 0
    told = [one for one in event_data(run, EventKind.METRICS) if "learning_rate" in one][-3:]
    assert [(one["step"], one["learning_rate"]) for one in told] == [(4, 0.5), (5, 0.5), (6, 0.5)]


def test_a_fork_that_does_not_fit_is_refused_by_name(copied: Callable[[], Path]) -> None:
    wider = copied()
    found(wider, forked=True, recipe={"lora": {"r": 8}})
    assert main(wider) == 1
    error = read_result(wider).error
    assert error is not None
    assert error.code == "resume_mismatch"
    assert (
        "weight is float32 [4, 96] in the resume point, but float32 [8, 96] with this recipe"
        in error.message
    )
    point = found(copied(), forked=True, recipe={"max_steps": 3})
    with pytest.raises(RunError, match="is at step 3, but the recipe has 3 steps"):
        check_steps_left(point, 3)
    other_data = copied()
    with (other_data / "data" / "train.jsonl").open("a") as data:
        data.write('{"question": "one more?", "answer": "yes"}\n')
    with pytest.raises(RunError, match="training_file"):
        found(other_data, forked=True)


def _flip_a_bit_of_the_base(model: Path) -> None:
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def test_a_run_of_a_former_name_goes_on_under_the_current_one(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"tuning": "full", "lora": None, "precision": "bf16_split_master"}
    run = make_run(QUESTIONS, recipe=RECIPE | full)
    assert interrupt(run, monkeypatch, stop=2) == 75
    made_for = json.loads((run / "plan.json").read_text())["made_for"]
    for path in (run / "spec.json", run / "checkpoints" / "resume-2" / "manifest.json"):
        document = json.loads(path.read_text())
        document.pop("document_version", None)  # as a release without versions wrote it
        text = json.dumps(document)
        assert "bf16_split_master" in text
        path.write_text(text.replace("bf16_split_master", "bf16_error_word"))
    assert main(run) == 0
    assert [data["step"] for data in event_data(run, EventKind.RESUMED)] == [2]
    assert not warnings_of(run)
    assert json.loads((run / "plan.json").read_text())["made_for"] == made_for
