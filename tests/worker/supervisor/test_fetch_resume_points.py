"""What an attempt can go on from: of this host or of storage, never with a gap in what was told."""

from __future__ import annotations

import secrets
from pathlib import Path

import httpx
import pytest
from pydantic import JsonValue, SecretStr

from tunesmith_schema import (
    Claim,
    ClaimedFile,
    EventKind,
    Hyperparameters,
    Outcome,
    Recipe,
    ResumePoint,
    RunEvent,
    StoredFile,
)
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, file_hash
from tunesmith_worker.rundir.resume_point import FileEntry, Manifest, RunIdentity
from tunesmith_worker.rundir.verify_resume_point import verify
from tunesmith_worker.supervisor.downloads.fetch_resume_points import (
    clean_run_directory,
    fetch_resume_points,
)
from tunesmith_worker.supervisor.event_reader import EventReader
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.server_api import (
    ServerApi,
    ServerFault,
    ServerRefused,
    ServerUnreachable,
)
from tunesmith_worker.supervisor.settings import WorkerSettings
from tunesmith_worker.supervisor.uploads import ResumePointUploads

MADE_FOR = RunIdentity(
    model="m", base_model="b", training_file="t", validation_file=None, seed=0, recipe={},
    hyperparameters={},
)  # fmt: skip


class Store(ServerApi):
    """Holds resume points, and counts what is fetched."""

    def __init__(self, root: Path) -> None:
        self.root, self.fetched = root, 0
        self.lost = False

    def point(self, step: int) -> ResumePoint:
        folder = make_point(self.root / "storage", step)
        files = [
            StoredFile(name=file.name, bytes=file.stat().st_size, sha256=file_hash(file))
            for file in sorted(folder.iterdir())
        ]
        return ResumePoint(step=step, files=files)

    def fetch_resume_file(self, job_id: str, fence: int, file: StoredFile, target: Path) -> None:
        if self.lost:
            raise ServerRefused("gone")
        (found,) = {
            path
            for path in self.root.glob(f"storage/checkpoints/*/{file.name}")
            if file_hash(path) == file.sha256
        }
        self.fetched += 1
        target.write_bytes(found.read_bytes())


def make_point(root: Path, step: int) -> Path:
    folder = root / "checkpoints" / f"resume-{step}"
    folder.mkdir(parents=True)
    weights = folder / "trained.safetensors"
    weights.write_bytes(b"weights %d" % step)
    entry = FileEntry(bytes=weights.stat().st_size, sha256=file_hash(weights))
    manifest = Manifest(step=step, made_for=MADE_FOR, made_with={}, files={weights.name: entry})
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder


def gathered(
    api: Store, runs: Path, *, attempt: int, told: int, stored: tuple[int, ...] = ()
) -> list[str]:
    """Names in the new attempt's directory; each is whole."""
    claim = Claim(
        job_id="j", attempt=attempt, fence=1, lease_seconds=8.0, queued_seconds=0.0, model="m",
        recipe=Recipe(), seed=0, hyperparameters=Hyperparameters(), step=told,
        training_file=ClaimedFile(file_id="f", filename="a", bytes=1, sha256="0"),
        resume_points=[api.point(step) for step in stored],
    )  # fmt: skip
    root = runs / f"attempt-{attempt}"
    (root / "checkpoints").mkdir(parents=True)
    events = EventLog(root / "events.jsonl")
    fetch_resume_points(api, claim, root, lambda transfer: transfer(), events)
    found = sorted((root / "checkpoints").iterdir())
    assert [verify(folder).folder for folder in found] == found
    return [folder.name for folder in found]


def warning(root: Path) -> str:
    """The only one that was told."""
    (line,) = (root / "events.jsonl").read_text().splitlines()
    event = RunEvent.model_validate_json(line)
    assert event.level == "warn"
    return event.message


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def api(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_what_this_host_has_is_linked_not_fetched(api: Store, runs: Path) -> None:
    before = make_point(runs / "attempt-1", 10)
    inode = (before / "trained.safetensors").stat().st_ino
    assert gathered(api, runs, attempt=2, told=11, stored=(10, 5)) == ["resume-10"]
    linked = runs / "attempt-2" / "checkpoints" / "resume-10" / "trained.safetensors"
    assert linked.stat().st_ino == inode
    assert api.fetched == 0
    assert not before.exists(), "the attempt that is over keeps none"


def test_an_empty_disk_goes_on_from_storage_alone(api: Store, runs: Path) -> None:
    assert gathered(api, runs, attempt=7, told=22, stored=(20, 10)) == ["resume-20"]


def test_the_newer_of_both_is_taken(api: Store, runs: Path) -> None:
    make_point(runs / "attempt-1", 10)
    assert gathered(api, runs, attempt=2, told=25, stored=(20,)) == ["resume-10", "resume-20"]


def test_one_whose_metrics_the_server_never_got_is_not_gone_on_from(api: Store, runs: Path) -> None:
    for step in (10, 20):
        make_point(runs / "attempt-1", step)
    assert gathered(api, runs, attempt=2, told=20) == ["resume-10"]


def test_a_past_that_others_have_gone_on_from_is_left_alone(api: Store, runs: Path) -> None:
    make_point(runs / "attempt-1", 50)  # attempt 2 ran elsewhere
    assert gathered(api, runs, attempt=3, told=60, stored=(40,)) == ["resume-40"]


def test_a_damaged_one_of_this_host_is_not_linked(api: Store, runs: Path) -> None:
    for step in (10, 20):
        make_point(runs / "attempt-1", step)
    (runs / "attempt-1" / "checkpoints" / "resume-20" / "trained.safetensors").write_text("x")
    assert gathered(api, runs, attempt=2, told=25) == ["resume-10"]
    assert "attempt-1/checkpoints/resume-20 is damaged" in warning(runs / "attempt-2")


def test_what_storage_has_lost_is_passed_over(api: Store, runs: Path) -> None:
    make_point(runs / "attempt-1", 10)
    api.lost = True
    assert gathered(api, runs, attempt=2, told=25, stored=(20,)) == ["resume-10"]
    assert "resume point of step 20 from storage: gone" in warning(runs / "attempt-2")


def test_a_released_attempt_keeps_its_resume_points_and_no_other_does(runs: Path) -> None:
    for attempt in (1, 2):
        make_point(runs / f"attempt-{attempt}", 10)
        (runs / f"attempt-{attempt}" / "checkpoints" / "step-10").mkdir()
    clean_run_directory(runs / "attempt-2", Outcome(state="released"))
    left = {path.name for path in (runs / "attempt-2" / "checkpoints").iterdir()}
    assert left == {"resume-10"}
    clean_run_directory(runs / "attempt-2", Outcome(state="cancelled"))
    assert not list(runs.glob("*/checkpoints"))


def sending(
    root: Path, keep_every: int | None = None
) -> tuple[EventLog, EventReader, ResumePointUploads, list[str]]:
    """Of a run directory; the last gets the content of what is sent."""
    run, sent = RunDirectory(root), []

    def store(folder: Path) -> list[StoredFile]:
        sent.append(verify_name(folder))
        return [StoredFile(name="a", bytes=1, sha256="0" * 64)]

    log, feed = EventLog(run.events), EventReader(run.events)
    return log, feed, ResumePointUploads(run, feed, store, keep_every), sent


def save_points(log: EventLog, root: Path, *steps: int) -> None:
    for step in steps:
        make_point(root, step)
        data: dict[str, JsonValue] = {"step": step, "directory": f"checkpoints/resume-{step}"}
        log.append(EventKind.RESUME_POINT, f"saved {step}", data)


def test_uploads_hold_up_no_event_and_an_overtaken_one_is_not_sent(tmp_path: Path) -> None:
    log, feed, uploads, sent = sending(tmp_path)
    log.message("one")
    save_points(log, tmp_path, 10, 20)
    log.message("two")
    feed.read()
    assert [(one.source_seq, one.message) for one in feed.batch()] == [(1, "one"), (2, "two")]
    while not sent or uploads.busy:
        uploads.update()
    log.message("three")
    feed.read()
    assert [(one.source_seq, one.message) for one in feed.batch()] == [
        *((1, "one"), (2, "two"), (3, "saved 20"), (4, "three")),
    ]
    assert sent == ["weights 20"]
    assert not list(tmp_path.glob(".*.part"))
    uploads.close()


def test_those_that_the_recipe_keeps_are_sent_after_the_newest(tmp_path: Path) -> None:
    log, feed, uploads, sent = sending(tmp_path, keep_every=20)
    save_points(log, tmp_path, 10, 20, 30, 40, 50)
    feed.read()
    while len(sent) < 3 or uploads.busy:
        uploads.update()
    assert sent == ["weights 50", "weights 40", "weights 20"]
    uploads.close()


def test_one_that_the_trainer_is_removing_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    log, feed = EventLog(run.events), EventReader(run.events)
    uploads = ResumePointUploads(run, feed, lambda folder: pytest.fail("part of one was sent"))
    (make_point(tmp_path, 10) / "trained.safetensors").unlink()
    log.append(EventKind.RESUME_POINT, "saved", {"step": 10, "directory": "checkpoints/resume-10"})
    feed.read()
    uploads.update()
    while uploads.busy:
        uploads.update()
    assert feed.batch() == []
    uploads.close()


def verify_name(folder: Path) -> str:
    return (folder / "trained.safetensors").read_text()


def test_one_that_cannot_be_stored_is_a_warning_and_the_run_goes_on(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    log, feed = EventLog(run.events), EventReader(run.events)

    def refuse(folder: Path) -> list[StoredFile]:
        raise ServerUnreachable("storage is full")

    uploads = ResumePointUploads(run, feed, refuse)
    make_point(tmp_path, 10)
    log.append(EventKind.RESUME_POINT, "saved", {"step": 10, "directory": "checkpoints/resume-10"})
    feed.read()
    uploads.update()
    while uploads.busy:
        uploads.update()
    (said,) = feed.batch()
    assert (said.kind, said.level, said.files) == (EventKind.MESSAGE, "warn", None)
    assert "was not stored: storage is full" in said.message
    uploads.close()


def test_content_that_storage_has_damaged_is_not_asked_for_for_ever(
    tmp_path: Path, api: Store
) -> None:
    """A fault ends a transfer after a few; a server that is away would be waited for."""
    settings = WorkerSettings(
        worker_token=SecretStr(secrets.token_hex(16)), data_dir=tmp_path / "data"
    )
    damaged = httpx.MockTransport(lambda request: httpx.Response(200, content=b"other"))
    with pytest.raises(ServerFault, match="does not match its sha256"):
        ServerApi(settings, WorkerIdentity.new("train"), transport=damaged).fetch_resume_file(
            "j", 1, api.point(20).files[0], tmp_path / "file"
        )


def test_what_the_last_attempt_had_drawn_comes_along_and_does_not_stay(
    api: Store, runs: Path
) -> None:
    for attempt in (1, 2):
        make_point(runs / f"attempt-{attempt}", attempt)
        (runs / f"attempt-{attempt}" / "rollouts.jsonl").write_text(str(attempt))
    assert gathered(api, runs, attempt=3, told=9) == ["resume-2"]
    assert (runs / "attempt-3" / "rollouts.jsonl").read_text() == "2"
    clean_run_directory(runs / "attempt-3", Outcome(state="cancelled"))
    assert not list(runs.glob("*/rollouts.jsonl"))
