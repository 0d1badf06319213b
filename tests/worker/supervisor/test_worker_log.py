"""The worker's log: what the server or a file says stays within its line."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import logging
from tunesmith_worker.supervisor.app import make_app, secure_logs
app = make_app("memory://")
secure_logs()
app.log.setup(loglevel="INFO")
app.log.get_default_logger().warning("a\\nFORGED 1")
logging.getLogger("tunesmith_worker.x").warning("%s", "b\\r\\nFORGED 2")
from celery.utils.log import get_task_logger
get_task_logger("t").warning("c\\nFORGED 3")
try:
    raise ValueError("d\\nFORGED 4")
except ValueError:
    logging.getLogger("y").exception("failed")
"""


def test_no_message_forges_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    for number in range(1, 5):
        assert f"FORGED {number}" in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("FORGED")] == []
