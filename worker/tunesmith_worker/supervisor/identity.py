"""Identity of a worker process: its id, its queue, and a secret that no other process has.

Each start generates a new secret. The worker enrolls with the shared token (`ServerApi.enroll`).
All other requests of the worker contain its id and its secret. Therefore, no worker can send
requests in the name of another worker.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Literal

Queue = Literal["train", "light"]


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    worker_id: str
    queue: Queue
    secret: str = field(repr=False)

    @classmethod
    def new(cls, queue: Queue) -> WorkerIdentity:
        return cls(
            worker_id=f"{queue}@{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            queue=queue,
            secret=secrets.token_urlsafe(32),
        )

    @property
    def credential(self) -> str:
        """Value of the `Authorization` header."""
        return f"Bearer {self.worker_id}:{self.secret}"

    @property
    def secret_sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()
