"""`jobs.move` is the only writer of a job's state: legal transitions, conditional on the fence."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import update

from tunesmith_schema import TRANSITIONS, JobState
from tunesmith_server.models import JobRow
from tunesmith_server.services.training import jobs

from .actors import Server

PAIRS = list(itertools.product(JobState, JobState))


@pytest.fixture
def job_id(server: Server) -> str:
    return server.create_job(server.good_file())


def set_to(server: Server, job_id: str, state: JobState) -> None:
    with server.database.write.begin() as session:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(state=state, fence=3))


def state_of(server: Server, job_id: str) -> JobState:
    with server.database.write.begin() as session:
        row = session.get(JobRow, job_id)
        assert row is not None
        return JobState(row.state)


def test_only_legal_transitions_change_a_job(server: Server, job_id: str) -> None:
    for state, to in PAIRS:
        set_to(server, job_id, state)
        with server.database.write.begin() as session:
            moved = jobs.move(session, job_id, to, "test")
        legal = to in TRANSITIONS[state]
        assert (moved is not None) is legal, (state, to)
        assert state_of(server, job_id) == (to if legal else state)


def test_a_transition_may_be_limited_to_some_states(server: Server, job_id: str) -> None:
    set_to(server, job_id, JobState.RUNNING)
    with server.database.write.begin() as session:
        move = jobs.move(session, job_id, JobState.CANCELLED, "test", only_from={JobState.QUEUED})
    assert move is None
    assert state_of(server, job_id) is JobState.RUNNING


@pytest.mark.parametrize(("fence", "moves"), [(2, False), (3, True), (4, False)])
def test_a_fence_must_be_the_current_one(
    server: Server, job_id: str, fence: int, moves: bool
) -> None:
    set_to(server, job_id, JobState.RUNNING)
    with server.database.write.begin() as session:
        moved = jobs.move(session, job_id, JobState.SUCCEEDED, "test", fence=fence)
    assert (moved is not None) is moves
