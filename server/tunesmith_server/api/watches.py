"""Position of a reader in the streams of many jobs, as text.

An example is `ftjob-a:12,ftjob-b:done,*:1764000000`. The text is the value of the parameter `jobs`
and the id of each SSE message. A reader that reconnects with the last id gets each missing message
once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import BadRequest

MAX_JOBS = 20
ALL = "*"
_PART = re.compile(r"^(\*|ftjob-[\w-]{1,40})(?::(\d{1,15}|done))?$", re.ASCII)


@dataclass
class Position:
    """Position of a reader in the events of named jobs. If `everything` is True, the reader also
    follows the progress of all jobs."""

    seqs: dict[str, int]
    """Number of the last received event of each job; the keys are job ids."""
    ended: set[str]
    """Jobs whose end was received."""
    everything: bool = False
    since: int | None = None
    """Time up to which the progress of all jobs was received, Unix seconds."""

    def open(self) -> list[str]:
        """Return the ids of the jobs whose message `done` the reader has not received."""
        return [job_id for job_id in self.seqs if job_id not in self.ended]

    def text(self) -> bytes:
        parts = [
            f"{job_id}:{'done' if job_id in self.ended else seq}"
            for job_id, seq in self.seqs.items()
        ]
        if self.everything:
            parts.append(ALL if self.since is None else f"{ALL}:{self.since}")
        return ",".join(parts).encode()

    def moved_to(self, last_event_id: str) -> Position:
        """Return the position after the SSE message with this id. Parts of `last_event_id` that are
        invalid or name other jobs are ignored."""
        known = Position(dict(self.seqs), set(self.ended), self.everything, self.since)
        names = {*self.seqs, ALL} if self.everything else self.seqs.keys()
        for part in last_event_id.split(","):
            found = _PART.match(part)
            if found and found[1] in names and found[2] is not None:
                known._set(found[1], found[2])
        return known

    def _set(self, name: str, at: str | None) -> None:
        if name == ALL:
            self.everything = True
            if at is not None and at != "done":
                self.since = int(at)
            return
        self.seqs[name] = int(at) if at and at != "done" else self.seqs.get(name, 0)
        if at == "done":
            self.ended.add(name)


def parse(text: str) -> Position:
    """Read the parameter `jobs`. Raises BadRequest."""
    position = Position({}, set())
    for part in text.split(","):
        found = _PART.match(part)
        if found is None:
            raise _invalid(f"{part[:60]!r} is not a job id with an optional event number, or *")
        position._set(found[1], found[2])
    if len(position.seqs) > MAX_JOBS:
        raise _invalid(f"a stream has the events of at most {MAX_JOBS} jobs")
    return position


def _invalid(reason: str) -> BadRequest:
    return BadRequest(
        ErrorCode.INVALID_REQUEST,
        f"jobs: {reason}",
        param="jobs",
        hint="separate by commas: ID for all events of a job, ID:NUMBER for the events after this "
        "number, * for the progress of all jobs",
    )
