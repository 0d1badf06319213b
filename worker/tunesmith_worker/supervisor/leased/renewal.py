"""Renewal of a lease by a thread."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tunesmith_worker.supervisor.server_api import FencedOut, ServerRefused, ServerUnreachable

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 4


class LeaseRenewal:
    """Context manager that renews a lease in a thread until the `with` block ends."""

    def __init__(
        self,
        renew: Callable[[], float],
        lease_seconds: float,
        subject: str,
        *,
        every: float = math.inf,
    ) -> None:
        """`renew`: function that renews the lease and returns its new duration in seconds.

        `subject`: id of the leased object, for messages. `every`: longest interval between renewals
        in seconds.
        """
        self._renew_lease, self._subject, self._every = renew, subject, every
        self._seconds = min(every, lease_seconds / BEATS_PER_LEASE)
        self._ended, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease-renewal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def is_lost(self) -> bool:
        """Return True if the server has given the object to another worker, or cancelled the
        work."""
        return self._lost.is_set()

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._seconds = min(self._every, self._renew_lease() / BEATS_PER_LEASE)
            except (FencedOut, ServerRefused) as error:
                log.warning("the lease of %s is lost: %s", self._subject, error)
                self._lost.set()
                return
            except ServerUnreachable as error:  # the work continues; the next beat tries again
                log.warning("the lease of %s was not renewed: %s", self._subject, error)
