"""The model's own layers compiled: the same numbers, one graph for every shape, and a choice."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events
from tunesmith_schema import EventKind
from tunesmith_worker.engine.patches import CompiledLayers
from tunesmith_worker.engine.patches.compiled import COLD_SECONDS
from tunesmith_worker.trainer.auto.layout_choice import COMPILED, LayoutPlan
from tunesmith_worker.trainer.auto.layout_trial import LayoutTrial
from tunesmith_worker.trainer.run import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch's compiler has its own
]

SPEEDS = {"padding_free": 1.0, "packed": 1.0, "padded": 1.1, COMPILED: 1.3}


@pytest.fixture(autouse=True)
def a_compiler_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is called: nothing here runs what inductor would make."""
    monkeypatch.setattr(shutil, "which", lambda name: name)


@pytest.fixture
def compiled_is_fastest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = LayoutTrial.record

    def told(self: LayoutTrial, seconds: float, slots: int) -> None:
        record(self, slots / SPEEDS[self.current], slots)

    monkeypatch.setattr(LayoutTrial, "record", told)
    monkeypatch.setattr(LayoutPlan, "compiling_pays", lambda *_: True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    # As inductor is given it, without minutes of C++.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.mark.usefixtures("compiled_is_fastest")
def test_a_run_on_compiled_layers_learns_the_same(make_run: MakeRun, tmp_path: Path) -> None:
    rows = [{**row, "answer": row["answer"] + " yes" * n} for n, row in enumerate(QUESTIONS)]
    recipe = {"max_steps": 44, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    torch._dynamo.reset()
    run = make_run(rows, recipe=recipe, name="compiled")
    assert main(run) == 0
    (choice,) = [c for c in event_data(run, EventKind.CHOICE) if c["name"] == "packing"]
    assert choice["value"] == COMPILED
    assert choice["figures"]["steps"].count(COMPILED) >= 2
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert 1 <= graphs <= 8, "one graph a layer for every length, and a few more at most"
    (note,) = (tmp_path / "inductor").glob("tunesmith-*.json")
    assert "seconds" in note.read_text()

    plain = make_run(rows, recipe={**recipe, "packing": False}, name="plain")
    assert main(plain) == 0
    assert losses(run) == pytest.approx(losses(plain), rel=1e-5)

    again = make_run(rows, recipe=recipe, name="again")
    (again / "plan.json").write_bytes((run / "plan.json").read_bytes())
    assert main(again) == 0
    assert losses(again) == losses(run)


class _Config:
    def to_json_string(self) -> str:
        return "{}"


class _Model:
    config, dtype = _Config(), torch.float32


def test_without_a_compiler_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, make_run: MakeRun
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    assert CompiledLayers(_Model(), [object()]).estimated_seconds is None  # type: ignore[list-item]  # none is run


@pytest.mark.usefixtures("compiled_is_fastest")
def test_what_cannot_be_compiled_is_given_up_at_once(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries = []

    def broken(graph: Any, inputs: Any) -> Any:  # Any: a compiler's
        tries.append(1)
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(torch, "compile", lambda f, **_: torch._dynamo.optimize(broken)(f))
    torch._dynamo.reset()
    run = make_run(QUESTIONS, recipe={"max_steps": 44, "per_device_train_batch_size": 4})
    assert main(run) == 0
    assert len(tries) == 1, tries
    (warning,) = [e for e in read_events(run) if "no longer used" in e.message]
    assert "no such instruction" in warning.message
    assert warning.level == "warn"
    assert not list((tmp_path / "inductor").glob("tunesmith-*.json"))


@pytest.mark.parametrize("note", ["", "{}", "[1]", "null", '{"seconds": "x"}'])
def test_a_damaged_note_is_no_note(
    note: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    layers = CompiledLayers(_Model(), [object()])  # type: ignore[list-item]  # none is run
    with layers.first_use():
        pass
    (file,) = tmp_path.glob("tunesmith-*.json")
    assert layers.estimated_seconds != COLD_SECONDS
    file.write_text(note)
    assert layers.estimated_seconds == COLD_SECONDS
