"""Times of answers: whether another project's thing exists cannot be told from them.

The test measures CPU time, so `make test-timing` runs it alone, and again if it fails.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import pytest

from .actors import Server
from .callers import Caller
from .teams import caller, two_teams
from .test_isolation import names_of, unknown

PATHS = (
    "/v1/files/{file_id}",
    "/v1/fine_tuning/jobs/{job_id}",
    "/v1/models/{model}",
    "/v1/adapters/{adapter_id}",
    "/v1/evaluations/{evaluation_id}",
    "/v1/uploads/{upload_id}",
)
PAIRS = 200
"""Requests of each kind. The standard error of `above` is then 0.029."""
FAR = 0.12
"""Largest difference of `above` from 1/2: four standard errors."""
LEAK = 0.001
"""Seconds. A difference of this size between two answers must be found."""


def above(times: Sequence[float], others: Sequence[float]) -> float:
    """Return the probability that one of `times` is above one of `others`; 1/2 for equal
    distributions."""
    ordered = sorted(others)
    wins = sum(bisect_left(ordered, one) + bisect_right(ordered, one) for one in times)
    return wins / (2 * len(times) * len(ordered))


def seconds(sender: Caller, path: str) -> float:
    """Return the CPU time of client and server, which other programs of the machine do not change.
    A client of the service sees this time and the waits."""
    began = time.process_time()
    sender.get(path)
    return time.process_time() - began


def compared(measure: Callable[[str], float], one: str, other: str) -> float:
    """Return `above` of the times of two requests, which alternate in a random order."""
    draw, times = random.Random(7), {one: list[float](), other: list[float]()}
    for _ in range(PAIRS):
        for path in draw.sample((one, other), 2):
            times[path].append(measure(path))
    return above(times[one], times[other])


@pytest.mark.timing
def test_a_foreign_id_takes_as_long_as_an_unknown_one(server: Server) -> None:
    _, _, other = two_teams(server)
    viewer = caller(server, "viewer")
    foreign = names_of(other)
    nobody = unknown(foreign)

    def measure(path: str) -> float:
        return seconds(viewer, path)

    results = {
        path: compared(measure, path.format_map(foreign), path.format_map(nobody)) for path in PATHS
    }
    assert all(abs(result - 0.5) < FAR for result in results.values()), results
    path = PATHS[0].format_map(foreign)

    def measure_leak(asked: str) -> float:
        return measure(asked) + (LEAK if asked == path else 0.0)

    found = compared(measure_leak, path, PATHS[0].format_map(nobody))
    assert found - 0.5 > FAR, "the measurement is too coarse on this machine"
