"""Running app for the server tests, with clients, a worker and a fake broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from httpx2 import Response
from sqlalchemy import update
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from tunesmith_server.app import create_app
from tunesmith_server.core.database import Database
from tunesmith_server.core.principal import ProjectLimits
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.janitor import Janitor
from tunesmith_server.models import DEFAULT_PROJECT, JobRow, ResumePointRow, scope
from tunesmith_server.services import keys
from tunesmith_server.services.leasing import leases

from .callers import Caller, TrainWorker

ROWS = (
    b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
)


class FakeWakeUps(WakeUps):
    """Records messages instead of sending them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def send(self, task: str, subject_id: str) -> None:
        self.sent.append((task, subject_id))

    def close(self) -> None:
        """Do nothing: no connection is open."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Running app with users and a worker."""

    app: FastAPI
    client: TestClient
    settings: Settings
    database: Database
    storage: Storage
    wake_ups: FakeWakeUps
    user: Caller
    worker: TrainWorker
    anonymous: Caller

    def user_session(self) -> Session:
        """Return a session of the default project, as a user's request has one."""
        limits = ProjectLimits(project_id=DEFAULT_PROJECT)
        return scope.limit(self.database.write(), limits)

    def new_user(self, name: str) -> Caller:
        return Caller(self.client, new_key(self.database, name))

    def upload(self, content: bytes = ROWS, filename: str = "rows.jsonl", **form: str) -> str:
        reply = self.user.post(
            "/v1/files", files={"file": (filename, content)}, data={"purpose": "fine-tune", **form}
        )
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def validate(self, file_id: str, **found: Any) -> dict[str, Any]:
        """Claim the reading of a file and send its result, as the light worker."""
        lease = self.worker.claim_reading(file_id)
        result = {"ok": True, "format": "messages", "rows": 1, **found}
        reply = self.worker.read("result", file_id, lease, result=result)
        assert reply.status_code == 200, reply.text
        file: dict[str, Any] = reply.json()
        return file

    def good_file(self, content: bytes = ROWS) -> str:
        file_id = self.upload(content)
        self.validate(file_id)
        return file_id

    def bad_file(self) -> str:
        file_id = self.upload(b"not json\n", "bad.jsonl")
        problems = [{"row": 1, "message": "not JSON"}]
        self.validate(file_id, ok=False, format=None, problems=problems, num_problems=1)
        return file_id

    def create_reply(self, training_file: str, /, **body: Any) -> Response:
        headers = {"content-type": "application/json", **body.pop("headers", {})}
        body = {"model": "tiny-llama", "training_file": training_file, **body}
        return self.user.post("/v1/fine_tuning/jobs", content=json.dumps(body), headers=headers)

    def create_job(self, training_file: str, /, **body: Any) -> str:
        """Create a job while a worker with the usual base model is running. Return the job's id."""
        assert self.worker.hello().status_code == 200
        reply = self.create_reply(training_file, **body)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def job(self, job_id: str) -> Any:  # Any: JSON
        return self.user.json(f"/v1/fine_tuning/jobs/{job_id}")

    def ask(self, job_id: str, verb: str, **body: Any) -> Any:  # Any: JSON
        """Send a command that must succeed. Return the job."""
        path = f"/v1/fine_tuning/jobs/{job_id}/{verb}"
        reply = self.user.post(path, **({"json": body} if body else {}))
        assert reply.status_code == 200, reply.text
        return reply.json()

    def messages(self, job_id: str) -> list[str]:
        path = f"/v1/fine_tuning/jobs/{job_id}/events"
        events = self.user.json(path, params={"order": "asc", "limit": 1000})
        return [item["message"] for item in events["data"]]

    def age_lease(self, job_id: str, seconds: float = 10_000) -> None:
        """Move the end of the job's lease into the past."""
        self.change_job(job_id, lease_until=JobRow.lease_until - seconds)

    def end_back_off(self, job_id: str) -> None:
        """Move the end of the job's retry delay into the past."""
        self.change_job(job_id, not_before=JobRow.not_before - 10_000)

    def change_job(self, job_id: str, **columns: Any) -> None:  # Any: values or SQL expressions
        with self.database.write.begin() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(**columns))

    def add_resume_points(self, job_id: str, *steps: int) -> None:
        """Insert resume points without content."""
        with self.database.write.begin() as session:
            for step in steps:
                point = ResumePointRow(job_id=job_id, step=step, created_at=1.0, bytes=1, files=[])
                session.add(point)

    def take_back(self) -> int:
        """End expired leases, as the janitor does after its first lease term."""
        with self.database.write.begin() as session:
            return leases.take_back_expired(session, self.settings)

    def janitor(self) -> Janitor:
        return Janitor(self.settings, self.database, self.storage, self.wake_ups)


def new_key(database: Database, name: str) -> str:
    with database.write.begin() as session:
        return keys.create(session, name)[1]


@contextmanager
def serving(settings: Settings, wake_ups: FakeWakeUps) -> Iterator[Server]:
    app = create_app(settings)
    state = app.state.tunesmith
    token = settings.worker_token.get_secret_value()
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Server(
            app=app,
            client=client,
            settings=settings,
            database=state.database,
            storage=state.storage,
            wake_ups=wake_ups,
            user=Caller(client, new_key(state.database, "ann")),
            worker=TrainWorker(client, token),
            anonymous=Caller(client, None),
        )
