"""Wake-ups that nobody gets: jobs of the seeding are not for real workers."""

from __future__ import annotations

from tunesmith_server.core.queue import WakeUps


class Quiet(WakeUps):
    """Sends nothing."""

    def __init__(self) -> None:
        """Connect to no broker."""

    def send(self, task: str, subject_id: str) -> None:
        """Do nothing."""

    def send_after_commit(self, session: object, task: str, subject_id: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: no connection is open."""
