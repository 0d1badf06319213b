"""One rule tells an outage, after which the same operation may succeed, from bad data: for the
events of a report, and for the jobs that a claim tries."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import psycopg
import pytest
import sqlalchemy.event
from sqlalchemy.exc import DataError, InterfaceError, InternalError, OperationalError

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import BadRequest, Unavailable
from tunesmith_server.core.storage import StorageUnavailable
from tunesmith_server.models import EventRow
from tunesmith_server.services.results.faults import is_outage

from .actors import Server
from .callers import event

Cause = Callable[[], Exception]


def _sqlite(code: int) -> Cause:
    def make() -> Exception:
        original = sqlite3.OperationalError("text")
        original.sqlite_errorcode = code
        return OperationalError("INSERT", {}, original)

    return make


def _lost_connection() -> Exception:
    error = DataError("INSERT", {}, Exception())
    error.connection_invalidated = True
    return error


OUTAGES: dict[str, Cause] = {
    "SQLite is busy": _sqlite(sqlite3.SQLITE_BUSY),
    "SQLite's disk is full": _sqlite(sqlite3.SQLITE_FULL),
    "the server closed the connection": lambda: OperationalError("INSERT", {}, Exception()),
    "the driver lost the connection": lambda: InterfaceError("INSERT", {}, Exception()),
    "the connection is invalid": _lost_connection,
    "an internal error of the database": lambda: InternalError("INSERT", {}, Exception()),
    "the storage does not answer": lambda: StorageUnavailable("no answer"),
    "another request is in progress": lambda: Unavailable(ErrorCode.UNAVAILABLE, "later"),
    "an error of the disk": lambda: OSError(5, "input/output error"),
    "no memory": MemoryError,
}
DATA: dict[str, Cause] = {
    "malformed JSON in SQLite": _sqlite(sqlite3.SQLITE_ERROR),
    "a value beyond a limit of PostgreSQL": lambda: OperationalError(
        "INSERT", {}, psycopg.errors.ProgramLimitExceeded()
    ),
    "a value of the wrong type": lambda: DataError("INSERT", {}, Exception()),
    "a number beyond 64 bits": lambda: OverflowError("int too large"),
    "a refused value": lambda: BadRequest(ErrorCode.INVALID_REQUEST, "no"),
    "a missing key": lambda: KeyError("x"),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_passes(name: str) -> None:
    assert is_outage(OUTAGES[name]())


@pytest.mark.parametrize("name", DATA)
def test_no_repetition_helps_bad_data(name: str) -> None:
    assert not is_outage(DATA[name]())


@pytest.mark.parametrize("cause", ["no memory", "malformed JSON in SQLite"])
def test_a_report_keeps_its_events_through_an_outage_and_replaces_bad_ones(
    server: Server, cause: str
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()

    def fail(mapper: object, connection: object, row: EventRow) -> None:
        if row.message == "bad":
            raise (OUTAGES | DATA)[cause]()

    sqlalchemy.event.listen(EventRow, "before_insert", fail)
    try:
        reply = server.worker.report(claim, events=[event(1, "bad"), event(2, "good")])
    finally:
        sqlalchemy.event.remove(EventRow, "before_insert", fail)
    assert reply["accepted_seq"] == (0 if cause in OUTAGES else 2)
    listed = server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}/events")["data"]
    assert ("quarantined" in {item["kind"] for item in listed}) is (cause in DATA)


@pytest.mark.parametrize(
    "cause", ["the storage does not answer", "a value beyond a limit of PostgreSQL"]
)
def test_a_claim_fails_no_job_through_an_outage(
    server: Server, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = server.create_job(server.good_file())

    def fail(*_: object) -> None:
        raise (OUTAGES | DATA)[cause]()

    monkeypatch.setattr("tunesmith_server.services.leasing.claims._data_file", fail)
    assert server.worker.claim_reply().status_code == 204 or cause in OUTAGES
    assert server.job(job_id)["state"] == ("queued" if cause in OUTAGES else "failed")
