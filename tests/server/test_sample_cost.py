"""Cost of a search in 10,000 samples."""

from __future__ import annotations

import random
import time
from typing import Any

from .actors import Server
from .test_samples import claim, packed, path, sample, told

__all__ = ["claim", "path"]


def test_a_search_in_ten_thousand_samples_costs_little(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    """Each page costs at most 60 ms of CPU (p95), whatever the filter selects."""
    words = random.Random(0)
    text = [" ".join(str(words.random()) for _ in range(30)) for _ in range(80)]
    events = []
    for step in range(1, 26):
        samples = [sample(step, n, completion=text[n % 80], prompt="p" * 300) for n in range(400)]
        events.append(told(server, claim, step, step, packed(samples)))
    server.worker.report(claim, events=events)
    assert sum(one["count"] for one in server.user.json(f"{path}/steps")["data"]) == 10_000
    costs = []
    for params in (
        {"reward_gt": 0.5, "limit": 100},
        {"row": 39},
        {"q": "not there"},
        {"step": 20, "sort": "spread", "limit": 100},
        {"finish_reason": "length"},
    ) * 8:
        start = time.process_time()
        server.user.json(path, params=params)
        costs.append(time.process_time() - start)
    costs.sort()
    assert costs[int(0.95 * len(costs))] <= 0.060, costs[-5:]
