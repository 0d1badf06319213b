"""Concurrent commands of users and reports of a worker produce only legal histories."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from tunesmith_schema import TERMINAL, TRANSITIONS, JobState

from .actors import Server

VERBS = ("pause", "resume", "stop")
WISHES = 60


def test_users_and_a_worker_at_once_make_a_legal_history(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.add_resume_points(job_id, 1)
    statuses: set[int] = set()

    def user(number: int) -> None:
        chance = random.Random(number)
        for wish in range(WISHES):
            verb = chance.choice(("pause", "resume") if wish < WISHES * 0.8 else VERBS)
            reply = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/{verb}")
            statuses.add(reply.status_code)
            time.sleep(chance.random() * 0.03)
        if number == 0:
            server.ask(job_id, "cancel")

    def worker() -> int:
        """Obey commands until the job ends; return the number of pause commands."""
        paused = 0
        while JobState(server.job(job_id)["state"]) not in TERMINAL:
            reply = server.worker.claim_reply()
            if reply.status_code == 204:
                time.sleep(0.01)
                continue
            claim = reply.json()
            while True:
                answer = server.worker.report_reply(claim)
                assert answer.status_code == 200, answer.text
                order = answer.json()["control"]
                if order in ("pause", "cancel"):
                    paused += order == "pause"
                    outcome = {"state": "released" if order == "pause" else "cancelled"}
                    server.worker.report(claim, outcome=outcome)
                    break
        return paused

    with ThreadPoolExecutor(4) as pool:
        working = pool.submit(worker)
        users = [pool.submit(user, number) for number in range(3)]
        for one in users:
            one.result(timeout=60)
        paused = working.result(timeout=60)
    assert paused >= 3
    assert statuses <= {200, 400}
    path = f"/v1/fine_tuning/jobs/{job_id}/events"
    told = server.user.json(path, params={"order": "asc", "limit": 1000})["data"]
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    states = [JobState(event["data"]["state"]) for event in told if event["kind"] == "state"]
    assert all(after in TRANSITIONS[before] for before, after in pairwise(states))
    assert [state for state in states if state in TERMINAL] == [JobState.CANCELLED]
    assert [event["message"] for event in told].count("stop requested") <= 1


OUTCOME = {
    "state": "failed",
    "error": {"category": "user", "code": "recipe_invalid", "message": "no attempt mends it"},
}


def test_a_pause_and_the_workers_last_report_at_once_leave_one_end(server: Server) -> None:
    for _ in range(5):
        job_id = server.create_job(server.good_file())
        claim = server.worker.claim()
        with ThreadPoolExecutor(2) as pool:
            asking = pool.submit(server.user.post, f"/v1/fine_tuning/jobs/{job_id}/pause")
            ending = pool.submit(server.worker.report, claim, outcome=OUTCOME)
            assert asking.result(timeout=20).status_code in (200, 400)
            ending.result(timeout=20)
        assert server.job(job_id)["state"] == "failed"
        assert len([m for m in server.messages(job_id) if m.startswith("failed")]) == 1
