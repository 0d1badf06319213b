"""Cost of a search in 10,000 samples."""

from __future__ import annotations

import hashlib
import random
from functools import partial
from typing import Any

import pytest

from tunesmith_server.models import SamplesRow

from ..cpu_time import cpu_p95
from .actors import Server
from .test_samples import claim, packed, path, sample

__all__ = ["claim", "path"]


def fill(server: Server, job_id: str, *, steps: int, each: int) -> None:
    """Insert the rows of steps whose samples are equal, so that one stored file serves all."""
    words = random.Random(0)
    text = [" ".join(str(words.random()) for _ in range(30)) for _ in range(each)]
    content = packed([sample(1, n, completion=text[n], prompt="p" * 300) for n in range(each)])
    sha256 = hashlib.sha256(content).hexdigest()
    server.storage.put_pieces([content], sha256)
    kept = {"created_at": 1.0, "count": each, "bytes": len(content), "sha256": sha256}
    with server.database.write.begin() as session:
        session.add_all(
            SamplesRow(job_id=job_id, step=step, **kept) for step in range(1, steps + 1)
        )


@pytest.mark.timing
@pytest.mark.parametrize(("steps", "each"), [(25, 400), (125, 80)])
def test_a_search_in_ten_thousand_samples_costs_little(
    server: Server, claim: dict[str, Any], path: str, steps: int, each: int
) -> None:
    """Each page costs at most 60 ms of CPU (p95), whatever the filter selects."""
    fill(server, claim["job_id"], steps=steps, each=each)
    listed = server.user.json(f"{path}/steps")["data"]
    assert sum(one["count"] for one in listed) == 10_000
    filters: list[dict[str, Any]] = [
        {"reward_gt": 0.5, "limit": 100},
        {"row": each},
        {"q": "not there"},
        {"step": 20, "sort": "spread", "limit": 100},
        {"finish_reason": "length"},
    ]
    calls = [partial(server.user.json, path, params=params) for params in filters * 8]
    assert cpu_p95(calls, 0.06) <= 0.06
