"""States of a job: which may follow which, and what OpenAI's clients see."""

from __future__ import annotations

from typing import get_args

import pytest

from tunesmith_schema import TERMINAL, TRANSITIONS, Job, JobState, wire_status

OPENAI = {"validating_files", "queued", "running", "succeeded", "failed", "cancelled"}


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(JobState)


def test_nothing_follows_the_end() -> None:
    assert {state for state, following in TRANSITIONS.items() if not following} == TERMINAL


def test_every_state_can_be_reached() -> None:
    reached, frontier = set(), {JobState.VALIDATING_FILES}
    while frontier:
        reached |= frontier
        frontier = {after for state in frontier for after in TRANSITIONS[state]} - reached
    assert reached == set(JobState)


@pytest.mark.parametrize("state", sorted(set(JobState) - TERMINAL))
def test_a_job_that_has_not_ended_may_fail_or_be_cancelled(state: JobState) -> None:
    assert TRANSITIONS[state] >= {JobState.FAILED, JobState.CANCELLED}


def test_only_a_held_job_succeeds() -> None:
    sources = {state for state, after in TRANSITIONS.items() if JobState.SUCCEEDED in after}
    assert sources == {JobState.RUNNING, JobState.PAUSING}  # the last step may come first


def test_only_a_queued_job_starts() -> None:
    sources = {state for state, after in TRANSITIONS.items() if JobState.RUNNING in after}
    assert sources == {JobState.QUEUED, JobState.PAUSING}  # a pause can be called off


def test_a_job_that_was_asked_to_pause_is_not_queued_behind_its_owners_back() -> None:
    assert JobState.QUEUED not in TRANSITIONS[JobState.PAUSING]


def test_no_state_follows_itself() -> None:
    assert not [state for state, after in TRANSITIONS.items() if state in after]


def test_the_wire_keeps_openais_words() -> None:
    assert {wire_status(state) for state in JobState} == OPENAI
    assert set(get_args(Job.model_fields["status"].annotation)) == OPENAI
    assert wire_status(JobState.PAUSED) == "queued"
    assert wire_status(JobState.PAUSING) == "running"


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[JobState.FAILED] = frozenset()  # type: ignore[index]  # that is the test
