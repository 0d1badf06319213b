"""report.json of real runs: by hand, padded, failed, cancelled; and what metrics carry."""

from __future__ import annotations

import json
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data
from tunesmith_schema import ROLLOUT, TRAINING, ControlAction, ControlFile, EventKind, RunReport
from tunesmith_worker.engine.memory.recompute import LayerCounters
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.paths import RunDirectory, write_json
from tunesmith_worker.trainer.report import recorder as recorders
from tunesmith_worker.trainer.report import watch
from tunesmith_worker.trainer.run import main

LIVE = {"step_seconds", "data_wait_share", "padding_share", "memory_rss"}
# Rows of very different lengths, so that a padded batch holds padding.
UNEVEN = [
    {"question": "How much? " * (1 + 9 * (i % 2)), "answer": f"It is {i}."} for i in range(16)
]


def read(run: Path) -> RunReport:
    return RunReport.model_validate_json((run / "report.json").read_bytes())


def trained(make_run: MakeRun, **recipe: Any) -> tuple[Path, RunReport]:
    recipe = {"max_steps": 8, "per_device_train_batch_size": 4, "save_steps": 4} | recipe
    run = make_run(UNEVEN, valid=UNEVEN[:4], recipe=recipe)
    assert main(run) == 0
    return run, read(run)


def test_a_run_by_hand_leaves_a_report_and_prints_nothing(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run, report = trained(make_run, gradient_accumulation_steps=2)
    assert "report" not in capsys.readouterr().out
    assert sum(report.phases.values()) == pytest.approx(report.wall_seconds, abs=0.01)
    assert report.phases["other"] < 0.03 * report.wall_seconds
    assert "import" in report.phases, "0.0 where an earlier run of this process has imported it all"
    for name in ("load", "data", "plan", "setup", "save", *set(TRAINING) - set(ROLLOUT)):
        assert report.phases[name] > 0, name
    assert (report.outcome, report.steps, report.total_steps) == ("succeeded", 8, 8)
    assert report.throughput is not None
    assert report.throughput.micro_batches == 16
    assert report.throughput.padding_share == 0
    assert report.peak_memory.rss is not None
    assert report.peak_memory.rss > 100 * 2**20
    assert report.utilization is not None
    assert (report.utilization.mfu, "CPU" in report.utilization.reason) == (None, True)
    assert (report.host, report.versions["torch"]) == (socket.gethostname(), version("torch"))
    assert report.settings is not None
    assert report.settings.layout == "padding_free"
    assert {choice.name for choice in report.choices} == {
        choice["name"] for choice in event_data(run, EventKind.CHOICE)
    }
    # Before the first batch the trainer sets up, which the event counts to training.
    train = next(e for e in event_data(run, EventKind.PHASE) if e["phase"] == "train")
    parts = sum(report.phases.get(name, 0.0) for name in TRAINING)
    assert parts <= train["seconds"] + 0.01 <= parts + report.phases["setup"] + 0.02


def test_padding_and_tokens_are_those_of_the_batches(make_run: MakeRun) -> None:
    run, report = trained(make_run, patches="off")
    assert report.throughput is not None
    rows = next(e for e in event_data(run, EventKind.MESSAGE) if e.get("rows") == len(UNEVEN))
    assert report.throughput.input_tokens == 2 * rows["tokens"]  # two epochs
    assert report.throughput.trained_tokens == 2 * rows["trained_tokens"]
    # Batches of 4 rows, long or short: padded slots are the rows' number times the longest.
    assert report.throughput.slots % 4 == 0
    assert report.throughput.padding_share is not None
    assert 0.2 < report.throughput.padding_share < 0.6


def test_packed_rows_fill_their_places(make_run: MakeRun) -> None:
    _, report = trained(make_run, packing=True, per_device_train_batch_size=1)
    assert report.throughput is not None
    assert report.throughput.padding_share == 0
    assert report.phases["pack"] > 0


def test_metrics_carry_live_figures_once_a_second(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = trained(make_run)
    points = [p for p in event_data(run, EventKind.METRICS) if "train_loss" in p]
    carrying = [p for p in points if set(p) & LIVE]
    assert set(points[0]) >= LIVE, "the first step tells at once"
    assert len(carrying) < len(points), "quick steps stay small"
    with_figures, without = (len(json.dumps(p)) for p in (points[0], points[-1]))
    assert with_figures - without < 160

    monkeypatch.setattr(watch, "LIVE_SECONDS", 0.0)
    again = make_run(UNEVEN, recipe={"max_steps": 3}, name="again")
    assert main(again) == 0
    for point in event_data(again, EventKind.METRICS):
        assert 0 < point["step_seconds"] < 60
        assert 0 <= point["data_wait_share"] < 1
        assert point["padding_share"] == 0
        assert point["memory_rss"] > 100 * 2**20


def test_a_run_that_fails_says_where_its_time_went(make_run: MakeRun) -> None:
    run = make_run([{"text": "x"}], recipe={"max_seq_length": 100_000})
    assert main(run) == 1
    report = read(run)
    assert (report.outcome, report.steps, report.throughput) == ("failed", 0, None)
    assert report.phases["load"] > 0
    assert report.bound.by == "startup"


def test_a_cancelled_run_leaves_its_report(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 1000})
    ended = StopControl.step_ended

    def cancel_at_three(control: StopControl, step: int) -> None:
        if step == 3:
            asked = ControlFile(action=ControlAction.CANCEL)
            write_json(RunDirectory(run).control, asked)
        ended(control, step)

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(StopControl, "step_ended", cancel_at_three)
    monkeypatch.setattr("tunesmith_worker.rundir.control.os._exit", leave)
    with pytest.raises(SystemExit):
        main(run)
    report = read(run)
    assert (report.outcome, report.steps) == ("stopped", 3)
    assert report.phases["backward"] > 0


def test_the_report_is_kept_fresh_while_training(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "WRITE_SECONDS", 0.0)
    seen: list[int] = []
    write = recorders.RunRecorder.write

    def look(recorder: recorders.RunRecorder, outcome: Any = None) -> None:
        write(recorder, outcome)
        seen.append(read(run).steps)

    monkeypatch.setattr(recorders.RunRecorder, "write", look)
    run = make_run(QUESTIONS, recipe={"max_steps": 4})
    assert main(run) == 0
    assert seen == [1, 2, 3, 4, 4]


def test_a_report_that_cannot_be_written_stops_no_run(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 2})
    (run / ".report.json.part").mkdir()
    assert main(run) == 0
    assert not (run / "report.json").exists()


def test_layers_are_counted_where_somebody_counts() -> None:
    assert LayerCounters().read().recomputes is None
    counted = LayerCounters(planned=["keep", "recompute"], recomputes=lambda: [0, 7]).read()
    assert (counted.planned, counted.recomputes, counted.offloads) == (
        ["keep", "recompute"],
        [0, 7],
        None,
    )
