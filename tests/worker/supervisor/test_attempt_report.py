"""The supervisor's account of an attempt: whole, late or killed, nothing is lost or told twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.rundir.reports import report
from tunesmith_schema import Claim, ClaimedFile, Hyperparameters, Outcome, Recipe, RunReport
from tunesmith_worker.supervisor.attempt_report import AttemptReport

CLAIM = Claim(
    job_id="ftjob-1",
    attempt=2,
    fence=5,
    lease_seconds=180.0,
    queued_seconds=30.0,
    model="m",
    training_file=ClaimedFile(file_id="file-1", filename="a", bytes=1, sha256="0"),
    recipe=Recipe(),
    hyperparameters=Hyperparameters(),
    seed=1,
)
FAILED = Outcome(state="failed")


class Story:
    """An attempt on a clock of its own; `told` are the phases that events have told of."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.told: dict[str, float] = {}
        self.path = folder / "report.json"
        self.account = AttemptReport(self.path, CLAIM, self.told, lambda: self.now)

    def until_spawned(self) -> Story:
        self.now += 2
        self.account.claimed(2.0)
        self.now += 3
        self.told |= {"claim": 32.0, "download": 3.0}
        self.account.trainer_spawned()
        return self

    def trainer_writes(self, written: RunReport) -> None:
        self.path.write_text(written.model_dump_json())

    def summed(self, outcome: Outcome | None) -> RunReport:
        found = self.account.report(outcome)
        assert sum(found.phases.values()) == pytest.approx(found.wall_seconds, abs=1e-3)
        return found


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_whole_attempt_is_accounted_for_to_the_last_second(story: Story) -> None:
    story.until_spawned()
    story.told["spawn"] = 1.0
    written = report(outcome="succeeded")
    story.now += 1 + written.wall_seconds + 0.5
    story.trainer_writes(written)
    story.account.trainer_ended()
    story.now += 7
    found = story.summed(Outcome(state="failed"))
    expected = {"claim": 2, "download": 3, "spawn": 1, "exit": 0.5, "upload": 7, "forward": 30}
    assert {name: found.phases[name] for name in expected} == pytest.approx(expected)
    assert found.phases["other"] == pytest.approx(0, abs=1e-3)
    assert found.wall_seconds == pytest.approx(2 + 3 + 1 + 98 + 0.5 + 7)
    assert (found.attempt, found.queued_seconds) == (2, 30)


def test_imports_that_a_warm_trainer_still_had_to_do_are_the_job_s(story: Story) -> None:
    story.until_spawned()
    story.told |= {"spawn": 1.0, "import": 6.0}  # four are in the trainer's own report
    written = report(outcome="succeeded")
    story.now += 1 + 2 + written.wall_seconds + 0.5
    story.trainer_writes(written)
    story.account.trainer_ended()
    found = story.summed(FAILED)
    assert found.phases["import"] == 6
    assert found.phases["exit"] == pytest.approx(0.5)
    assert found.phases["other"] == pytest.approx(0, abs=1e-3)


def test_before_the_trainer_has_written_events_stand_in(story: Story) -> None:
    story.until_spawned()
    story.told |= {"spawn": 1.0, "import": 4.0}
    story.now += 6
    found = story.summed(None)
    assert found.phases == {
        "claim": 2.0, "download": 3.0, "spawn": 1.0, "import": 4.0, "other": 1.0,
    }  # fmt: skip
    assert found.outcome is None


def test_a_killed_trainer_leaves_what_it_wrote_last(story: Story) -> None:
    story.until_spawned()
    story.told["spawn"] = 1.0
    story.trainer_writes(report())
    story.now += 1 + 98 + 4  # four seconds after that it is killed
    story.account.trainer_ended()
    found = story.summed(FAILED)
    assert found.outcome == "failed"
    assert found.phases["backward"] == 60
    assert found.phases["other"] == pytest.approx(4)
    assert "exit" not in found.phases


@pytest.mark.parametrize("content", [b"", b"{", b'{"attempt": 0}', b"[]"])
def test_a_report_that_cannot_be_read_is_as_none(story: Story, content: bytes) -> None:
    story.until_spawned()
    story.path.write_bytes(content)
    assert story.summed(FAILED).phases["download"] == 3


def test_the_supervisor_judges_the_whole(story: Story) -> None:
    """To the trainer alone its compute was the most; storing the result then took longer."""
    story.until_spawned()
    story.trainer_writes(report(outcome="succeeded"))
    story.now += 98
    story.account.trainer_ended()
    story.now += 1000
    assert story.summed(FAILED).bound.by == "checkpointing"


def test_what_was_taken_is_not_sent_again(story: Story) -> None:
    account = story.until_spawned().account
    assert account.unsent(None) is not None
    assert account.unsent(None) is not None, "no answer yet"
    account.mark_sent()
    story.now += 5
    assert account.unsent(None) is None


@pytest.mark.parametrize(
    "happens",
    [
        lambda story: story.told.update(spawn=1.0),
        lambda story: story.trainer_writes(report()),
    ],
)
def test_news_are_sent(story: Story, happens: Callable[[Story], None]) -> None:
    account = story.until_spawned().account
    account.unsent(None)
    account.mark_sent()
    happens(story)
    assert account.unsent(None) is not None


def test_the_outcome_always_brings_a_report(story: Story) -> None:
    account = story.until_spawned().account
    account.unsent(None)
    account.mark_sent()
    final = account.unsent(FAILED)
    assert final is not None
    assert final.outcome == "failed"


def test_pauses_are_told(story: Story) -> None:
    story.until_spawned().account.paused_seconds = 12.5
    assert story.summed(None).paused_seconds == 12.5
