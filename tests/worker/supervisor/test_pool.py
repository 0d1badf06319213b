"""The worker's pool survives the death of its process, idle or busy."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from celery.concurrency import get_implementation

from tunesmith_worker.supervisor.app import OneProcessPool, PrivateLocksPool, make_app


@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_process_is_replaced_by_one_that_takes_work(busy: bool) -> None:
    pool = PrivateLocksPool(1, threads=True, lost_worker_timeout=1.0)  # terminate() waits for it
    try:
        for _ in range(2):
            pid = pool.apply_async(os.getpid).get(timeout=30)
            if busy:
                pool.apply_async(time.sleep, (60,))
            time.sleep(0.3)  # the process waits for work, or sleeps
            os.kill(pid, signal.SIGKILL)
            # A call fails that arrives before the pool has replaced the process.
            while pid in (pids := [process.pid for process in pool._pool]) or not any(pids):
                time.sleep(0.01)
        assert pool.apply_async(os.getpid).get(timeout=30) != pid
    finally:
        pool.terminate()


def test_a_call_that_dies_with_the_process_ends_and_acknowledges_its_message() -> None:
    pool = PrivateLocksPool(1, threads=True)
    accepted: list[int] = []
    try:
        pid = pool.apply_async(os.getpid).get(timeout=30)
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.001)  # else the process reads a part of the message
        lost = pool.apply_async(os.getpid, accept_callback=lambda pid, at: accepted.append(pid))
        time.sleep(0.3)
        pool._inqueue._reader.recv_bytes()  # as the process does, before it confirms the call
        os.kill(pid, signal.SIGKILL)
        lost.wait(timeout=20)
        assert lost.ready(), "the call is open forever"
        assert not lost.successful()
        assert len(accepted) == 1
        assert pool.apply_async(os.getpid).get(timeout=30) != pid
    finally:
        pool.terminate()


def test_the_worker_uses_this_pool() -> None:
    assert get_implementation(make_app("memory://").conf.worker_pool) is OneProcessPool
