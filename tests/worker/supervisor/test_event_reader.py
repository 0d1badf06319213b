"""Lines of events.jsonl that are no events, or that no report can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunesmith_schema import EventKind, Report, RunEvent
from tunesmith_schema.run import MAX_EVENT_BYTES
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.supervisor.event_reader import EventReader


def line(number: int, **fields: Any) -> str:
    event = {"source_seq": number, "created_at": 1.5, "message": f"m{number}"}
    return json.dumps(event | fields) + "\n"


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param("{}\n", id="empty"),
        pytest.param("not JSON\n", id="no JSON"),
        pytest.param(line(2, message="x" * 5000), id="a long message"),
        pytest.param(line(2, data={"a": "x" * 100_000}), id="long data"),
        pytest.param(line(2, source_seq=10**40), id="a number beyond 64 bits"),
        pytest.param(line(2, data={"a": [10**40]}), id="data beyond 64 bits"),
        pytest.param(line(2, kind="surprise"), id="an unknown kind"),
    ],
)
def test_a_line_that_is_no_event_becomes_a_warning(tmp_path: Path, bad: str) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(line(1) + bad + line(3))
    reader = EventReader(file)
    reader.read()
    one, warning, three = reader.batch()
    assert (one.message, three.message) == ("m1", "m3")
    assert (warning.kind, warning.level, warning.source_seq) == (EventKind.QUARANTINED, "warn", 2)
    assert warning.data["reason"]
    reader.confirm(3)
    assert reader.batch() == []


def test_a_report_stays_below_the_servers_limit(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    text = "\U0001f600" * 15_000
    file.write_text("".join(line(number, data={"a": text}) for number in range(1, 101)))
    reader = EventReader(file)
    reader.read()
    sent: list[RunEvent] = []
    while batch := reader.batch():
        report = Report(worker_id="w", attempt=1, fence=1, events=batch)
        assert len(report.model_dump_json()) < 2 * 1024 * 1024
        assert len(batch) > 1
        sent += batch
        reader.confirm(batch[-1].source_seq)
    assert [event.source_seq for event in sent] == list(range(1, 101))


def test_a_trainer_with_too_much_to_say_goes_on(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.message("much", data={"small": 1, "large": "x" * 200_000, "larger": ["y" * 300_000]})
    [event] = [
        RunEvent.model_validate_json(text)
        for text in (tmp_path / "events.jsonl").read_text().splitlines()
    ]
    assert event.data == {"small": 1, "left_out": ["larger", "large"]}
    log.message("more", data={str(number): "z" * 100 for number in range(2000)})
    last = (tmp_path / "events.jsonl").read_text().splitlines()[-1]
    assert len(last) < MAX_EVENT_BYTES + 5000
