"""Translation of hints between interfaces: HTTP routes, SDK calls, CLI commands."""

from __future__ import annotations

import re

_JOBS = "client.fine_tuning.jobs"
_JOB = "/v1/fine_tuning/jobs/ID"

_NAMES: tuple[tuple[str, str, str], ...] = (
    ("GET /v1/models", "client.models.list()", "tunesmith models list"),
    ("GET /v1/files/ID", "client.files.retrieve('ID')", "tunesmith files show ID"),
    ("GET /v1/files", "client.files.list()", "tunesmith files list"),
    ("POST /v1/files", "client.files.create(file=...)", "tunesmith files upload FILE"),
    (
        "POST /v1/evaluations/ID/cancel",
        "client.evaluations.cancel('ID')",
        "tunesmith evaluations cancel ID",
    ),
    ("GET /v1/evaluations", "client.evaluations.list()", "tunesmith evaluations list"),
    ("GET /v1/uploads/ID", "client.uploads.retrieve('ID')", ""),
    ("POST /v1/uploads", "client.uploads.create(...)", ""),
    (f"GET {_JOB}/checkpoints", f"{_JOBS}.checkpoints.list('ID')", ""),
    *(
        (f"POST {_JOB}/{verb}", f"{_JOBS}.{verb}('ID')", f"tunesmith jobs {verb} ID")
        for verb in ("cancel", "pause", "resume", "stop", "fork", "retry")
    ),
    (f"DELETE {_JOB}", f"{_JOBS}.delete('ID')", "tunesmith jobs delete ID"),
    (f"GET {_JOB}", f"{_JOBS}.retrieve('ID')", "tunesmith jobs show ID"),
    ("GET /v1/fine_tuning/jobs", f"{_JOBS}.list()", "tunesmith jobs list"),
    ("POST /v1/fine_tuning/jobs", f"{_JOBS}.create(...)", "tunesmith jobs create"),
    ("", f"{_JOBS}.wait('ID')", "tunesmith jobs watch ID"),
    ("", "base_url=", "--base-url"),
)
"""HTTP route, SDK call and CLI command for each action. ID stands for any id. An empty string means
that the interface does not have the action."""


def in_python(hint: str) -> str:
    """Replace HTTP routes in a server's hint by SDK calls."""
    for route, call, _ in _NAMES:
        hint = _replaced(hint, route, call)
    return hint


def in_commands(hint: str) -> str:
    """Replace SDK calls in a hint by CLI commands."""
    for _, call, command in _NAMES:
        shown = f"`{command}`" if command.startswith("tunesmith") else command
        hint = _replaced(hint, call, shown)
    return hint


def _replaced(text: str, name: str, replacement: str) -> str:
    if not (name and replacement):
        return text
    pattern = re.escape(name).replace("ID", r"([\w{}-]+)") + r"(?![\w/])"
    return re.sub(pattern, lambda match: replacement.replace("ID", (*match.groups(), "")[0]), text)
