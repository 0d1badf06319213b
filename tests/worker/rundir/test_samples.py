"""Samples of a step: written by the trainer, stored by the supervisor, none twice, none lost."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.supervisor.test_disk_full import files_up_to, settings
from tests.worker.supervisor.test_supervise import TRAINER, FakeApi
from tunesmith_schema import EventKind, RunEvent, StoredFile
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, file_hash
from tunesmith_worker.rundir.samples import remove_samples, write_samples
from tunesmith_worker.supervisor import job_session
from tunesmith_worker.supervisor.event_reader import EventReader
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.server_api import ServerFault, ServerRefused
from tunesmith_worker.supervisor.supervise import supervise
from tunesmith_worker.supervisor.uploads import SampleUploads


def sample(completion: str = "4", **other: Any) -> dict[str, Any]:
    return {
        "group": 0,
        "row": 3,
        "prompt": "2 + 2 =",
        "completion": completion,
        "reward": 1.0,
        "scores": {"right": 1.0, "short": None},
        "advantage": 0.5,
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "finish_reason": "stop",
        **other,
    }


class Storage:
    """Keeps what is sent; `fails` stands for a server that cannot."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.fails = False

    def store(self, folder: Path) -> list[StoredFile]:
        if self.fails:
            raise ServerFault("PUT /blobs: the store does not answer")
        stored = []
        for path in folder.iterdir():
            sha256 = file_hash(path)
            self.content[sha256] = path.read_bytes()
            stored.append(StoredFile(name=path.name, bytes=path.stat().st_size, sha256=sha256))
        return stored


class Supervised:
    """A run, and what its supervisor does of all a held job's work: carry samples."""

    def __init__(self, root: Path) -> None:
        self.run = RunDirectory(root)
        self.log = EventLog(self.run.events)
        self.feed, self.storage = EventReader(self.run.events), Storage()
        self.uploads = SampleUploads(self.run, self.feed, self.storage.store)

    def until(self, done: Callable[[], bool]) -> list[RunEvent]:
        deadline = time.monotonic() + 10
        while True:
            self.feed.read()
            self.uploads.update()
            if done():
                return self.feed.batch()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def all_ready(self) -> bool:
        return len(self.feed.batch()) == len(self.feed)


@pytest.fixture
def supervised(tmp_path: Path) -> Supervised:
    return Supervised(tmp_path)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_step_is_a_file_of_one_object_a_line_and_one_event(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    given = [sample(), sample("vier\nПять \x00", reward=0.5), sample(reward=None)]
    write_samples(run, EventLog(run.events), 12, given)
    assert lines(tmp_path / "samples" / "step-000012.jsonl") == given
    (event,) = [RunEvent.model_validate_json(one) for one in run.events.read_text().splitlines()]
    assert event.kind is EventKind.SAMPLES
    expected = {"step": 12, "file": "samples/step-000012.jsonl", "count": 3, "reward": 0.75}
    assert event.data == expected


def test_what_json_or_unicode_cannot_hold_is_replaced(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    odd = sample("\ud83d", reward=float("nan"), scores={"right": float("inf")})
    write_samples(run, EventLog(run.events), 1, [odd])
    (line,) = lines(tmp_path / "samples" / "step-000001.jsonl")
    assert (line["completion"], line["reward"], line["scores"]) == ("?", None, {"right": None})


def test_a_full_disk_costs_the_samples_and_not_the_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with files_up_to(5_000):
        write_samples(run, EventLog(run.events), 2, [sample("x" * 10_000)])
    assert list(run.samples.iterdir()) == []
    (line,) = run.events.read_text().splitlines()
    event = RunEvent.model_validate_json(line)
    assert (event.kind, event.level) == (EventKind.MESSAGE, "warn")
    assert "step 2: 1 samples not written" in event.message


def test_steps_that_are_done_again_leave_no_samples_behind(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    log = EventLog(run.events)
    for step in (1, 2, 1_000_000):
        write_samples(run, log, step, [sample()])
    remove_samples(run, after=1)
    assert [path.name for path in run.samples.iterdir()] == ["step-000001.jsonl"]


def test_samples_are_stored_compressed_and_leave_the_workers_disk(supervised: Supervised) -> None:
    given = [sample("a very long text " * 10_000), sample()]
    write_samples(supervised.run, supervised.log, 1, given)
    (event,) = supervised.until(supervised.all_ready)
    assert event.kind is EventKind.SAMPLES
    assert event.files is not None
    (file,) = event.files
    assert file.name == "step-000001.jsonl.gz"
    unpacked = gzip.decompress(supervised.storage.content[file.sha256]).decode()
    assert [json.loads(line) for line in unpacked.splitlines()] == given
    assert file.bytes < len(unpacked) / 10
    supervised.feed.confirm(event.source_seq)
    supervised.uploads.update()
    assert list(supervised.run.samples.iterdir()) == []


def test_nothing_behind_samples_is_told_before_they_are_stored(supervised: Supervised) -> None:
    """So that a worker that is lost after a resume point was told has lost no samples of it."""
    write_samples(supervised.run, supervised.log, 1, [sample()])
    supervised.log.append(EventKind.METRICS, "step 1", {"step": 1})
    supervised.feed.read()
    assert supervised.feed.batch() == []
    kinds = [event.kind for event in supervised.until(supervised.all_ready)]
    assert kinds == [EventKind.SAMPLES, EventKind.METRICS]


def test_samples_that_cannot_be_stored_are_warned_of_and_the_run_goes_on(
    supervised: Supervised,
) -> None:
    supervised.storage.fails = True
    write_samples(supervised.run, supervised.log, 1, [sample()])
    supervised.until(supervised.all_ready)
    supervised.storage.fails = False
    write_samples(supervised.run, supervised.log, 2, [sample()])
    lost, stored = supervised.until(lambda: supervised.all_ready() and len(supervised.feed) == 2)
    assert (lost.kind, lost.level, lost.files) == (EventKind.MESSAGE, "warn", None)
    assert "step 1: 1 samples, mean reward 1, lost: not stored" in lost.message
    assert stored.kind is EventKind.SAMPLES


def test_a_run_that_must_end_at_once_says_which_samples_were_lost(supervised: Supervised) -> None:
    write_samples(supervised.run, supervised.log, 1, [sample()])
    supervised.feed.read()
    supervised.feed.abandon_uploads()
    (event,) = supervised.until(supervised.all_ready)
    assert (event.kind, event.level) == (EventKind.MESSAGE, "warn")
    assert "lost" in event.message


DRAWING = """
import json
def tell(seq, kind, **data):
    say(json.dumps({"source_seq": seq, "created_at": 1.0, "kind": kind, "message": kind,
                    "data": data}))
(root / "samples").mkdir()
for step in range(1, 31):
    file = f"samples/step-{step:06d}.jsonl"
    (root / file).write_text('{"completion": "x"}\\n')
    tell(100 + 2 * step, "samples", step=step, file=file, count=1)
    tell(101 + 2 * step, "metrics", step=step)
save("adapter")
end("succeeded")
"""


def told_by(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunEvent]:
    """What the server hears of a whole job whose trainer draws thirty steps in a moment."""
    monkeypatch.setattr(job_session, "REPORT_SECONDS", 0.05)
    given = settings(tmp_path, TRAINER + DRAWING)
    assert supervise(given, api, "worker-1", lambda: False, Launcher(given))
    assert api.outcome.state == "succeeded"
    return [event for report in api.reports for event in report.events]


def test_a_job_stores_the_samples_of_every_step_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    api = FakeApi()
    api.on_put = lambda path: sent.append(path.name)
    told = told_by(api, tmp_path, monkeypatch)
    kinds = (EventKind.SAMPLES, EventKind.METRICS)
    order = [(event.data["step"], event.kind) for event in told if event.kind in kinds]
    assert order == [(step, kind) for step in range(1, 31) for kind in kinds]
    names = [event.files[0].name for event in told if event.files]
    assert names == [f"step-{step:06d}.jsonl.gz" for step in range(1, 31)]
    assert sorted(sent) == [*names, "weights.safetensors"], "nothing is sent twice"
    assert list(tmp_path.rglob("samples")) == [], "nothing stays on the worker's disk"


def test_a_job_whose_samples_are_refused_succeeds_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        if path.suffix == ".gz":
            raise ServerRefused("PUT /blobs: too large")

    api = FakeApi()
    api.on_put = refuse
    told = told_by(api, tmp_path, monkeypatch)
    assert not [event for event in told if event.kind is EventKind.SAMPLES]
    lost = [event.message for event in told if event.level == "warn"]
    assert lost == ["samples, lost: not stored: PUT /blobs: too large"] * 30
