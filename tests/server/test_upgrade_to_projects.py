"""A database of the release before projects goes on after the upgrade, with jobs in every state."""

from __future__ import annotations

import dataclasses

from sqlalchemy import create_engine, text

from tunesmith_schema import TERMINAL, JobState
from tunesmith_server import migrate
from tunesmith_server.core.security import key_hash, new_key
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import DEFAULT_PROJECT

from .actors import FakeWakeUps, Server, serving
from .callers import Caller, TrainWorker, event

JOBS = "/v1/fine_tuning/jobs"


def test_jobs_of_every_state_go_on_with_their_worker_and_key(
    settings: Settings, wake_ups: FakeWakeUps
) -> None:
    old_key = "ts-" + new_key()[-43:]
    with serving(settings, wake_ups) as server:
        worker = server.worker
        running = server.create_job(server.good_file())
        claim = worker.claim()
        pausing = server.create_job(server.good_file())
        pausing_claim = worker.claim("worker-2")
        server.ask(pausing, "pause")
        done = server.create_job(server.good_file())
        worker.succeed(worker.claim("worker-3"))
        model = server.job(done)["fine_tuned_model"]
        queued = server.create_job(server.good_file())
        paused, cancelled = (server.create_job(server.good_file()) for _ in range(2))
        server.ask(paused, "pause")
        server.ask(cancelled, "cancel")
        unread = server.create_job(server.upload(b"later\n"))
        states = {item["id"]: item["state"] for item in server.user.json(JOBS)["data"]}
    assert {*states.values()} == {*JobState} - {JobState.FAILED}
    migrate.downgrade(settings.database_url, "0012")
    _insert_old_key(settings, old_key)
    migrate.upgrade(settings.database_url)
    with serving(settings, wake_ups) as fresh:
        server = _with_old_worker(fresh, worker, old_key)
        assert {item["id"]: item["state"] for item in server.user.json(JOBS)["data"]} == states
        assert server.user.json("/v1/me")["role"] == "lead"
        assert server.user.json("/v1/me")["project"]["id"] == DEFAULT_PROJECT
        # The worker of the old release reports with the credential and the fence that it has.
        server.worker.report(claim, events=[event(1, "still here")])
        assert "still here" in server.messages(running)
        server.worker.succeed(claim)
        server.worker.report(pausing_claim, outcome={"state": "released"})
        assert [server.job(job)["state"] for job in (running, pausing)] == ["succeeded", "paused"]
        assert server.job(running)["fine_tuned_model"].split(":")[2] == "default"
        server.validate(server.job(unread)["training_file"])
        assert server.job(unread)["state"] == "queued"
        server.ask(paused, "resume")
        assert server.ask(cancelled, "retry")["retry_of"] == cancelled
        assert server.user.get(f"/v1/models/{model}").status_code == 200
        for _ in (queued, unread, paused, "retry"):
            server.worker.succeed(server.worker.claim())
        ended = [item["state"] for item in server.user.json(JOBS)["data"]]
        assert set(ended) <= {*map(str, TERMINAL), "paused"}


def _insert_old_key(settings: Settings, key: str) -> None:
    engine = create_engine(settings.database_url)
    insert = "INSERT INTO api_keys (id, name, sha256, prefix, created_at) VALUES "
    values = {"hash": key_hash(key)}
    with engine.begin() as connection:
        connection.execute(text(f"{insert} ('key-old', 'old', :hash, 'ts-', 1.0)"), values)
    engine.dispose()


def _with_old_worker(server: Server, worker: TrainWorker, key: str) -> Server:
    """Return the server with the worker's old credentials and a key of the old release."""
    worker._client = server.client
    return dataclasses.replace(server, worker=worker, user=Caller(server.client, key))
