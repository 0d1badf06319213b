"""Run the failed tests of the last run a second time, alone: `python -m tests.again`.

Only CI does this. Its machine can be several times slower than usual, and then a test can meet a
delay that it does not expect. Such a test must be corrected, so the last lines name it. A run with
more than MOST failed tests fails at once, and so does a run with a failed test of NEVER.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

FAILED = Path(".pytest_cache/v/cache/lastfailed")
STATUS = "tunesmith/exit_status"
"""Key of pytest's cache: the exit status of the last run."""
MOST = 3
NEVER = ("tests/chaos/", "tests/end_to_end/")
"""Tests of whole services, which they kill: a job that is lost once in ten runs is a defect of the
product."""


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Store the exit status, because make hides it."""
    if session.config.cache is not None and not hasattr(session.config, "workerinput"):
        session.config.cache.set(STATUS, int(exitstatus))


def refusal(failed: Collection[str], status: int) -> str | None:
    """Return why the tests with these pytest ids may not run again after a run with this exit
    status; None if they may."""
    if status != pytest.ExitCode.TESTS_FAILED:
        return f"pytest did not run all tests (exit status {status})"
    if not failed:
        return "no test failed, but pytest did"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed, more than {MOST}"
    if killing := [test for test in failed if test.startswith(NEVER)]:
        return f"tests of whole services failed: {', '.join(killing)}"
    if files := [test for test in failed if "::" not in test]:
        return f"pytest could not read {', '.join(files)}"
    return None


def main() -> int:
    failed = list(json.loads(FAILED.read_text())) if FAILED.exists() else []
    stored = Path(".pytest_cache/v", STATUS)
    if why := refusal(failed, int(stored.read_text()) if stored.exists() else -1):
        sys.stdout.write(f"Failed tests do not run again: {why}\n")
        return 1
    status = subprocess.run([sys.executable, "-m", "pytest", *failed]).returncode
    verdict = "passed" if status == 0 else "failed again"
    sys.stdout.write("\n  ".join([f"Failed in the first run; {verdict} alone:", *failed]) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
