"""Requests to running jobs to free their device, because another job comes first or because the
worker is drained or reserved."""

from __future__ import annotations

from sqlalchemy.orm import Session

from tunesmith_server.scheduling import preemption, reservations, usage

from ..training import job_control


def make_room(session: Session) -> int:
    """Ask workers to free the devices of the running jobs that must leave; return the number of
    jobs."""
    asked = 0
    for job_id, reason in reservations.jobs_to_move(session):
        asked += job_control.ask_to_yield(session, job_id, reason)
    if found := preemption.find(session):
        now = usage.database_now(session)
        for one in found:
            asked += job_control.ask_to_yield(session, one.job_id, one.reason, preempted_at=now)
    return asked
