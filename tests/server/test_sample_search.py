"""Search in a job's samples: filters, one prompt across steps, and prompts by spread."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith_server.services.results import sample_search

from .actors import Server
from .callers import metrics
from .test_samples import claim, completions, fill, packed, path, sample, told

__all__ = ["claim", "path"]


def report(server: Server, claim: dict[str, Any], steps: dict[int, list[dict[str, Any]]]) -> None:
    events = [
        told(server, claim, number, step, packed(samples))
        for number, (step, samples) in enumerate(steps.items(), 1)
    ]
    server.worker.report(claim, events=events)


def test_filters_select_by_reward_finish_text_group_and_row(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    other = sample(2, 4, reward=None, finish_reason="length", completion='Ünicode "IS" here')
    report(server, claim, {1: [sample(1, n) for n in range(4)], 2: [sample(2, 0), other]})
    one, three = "step 1, place 1", "step 1, place 3"
    zero = ["step 1, place 0", "step 1, place 2", "step 2, place 0"]
    assert completions(server, path, reward_gt=0.5) == [one, three]
    assert completions(server, path, reward_lt=0.5) == zero
    assert completions(server, path, reward_gt=0, reward_lt=1) == []
    for params in ({"ungraded": True}, {"finish_reason": "length"}, {"q": 'üNICODE "is"'}):
        assert completions(server, path, **params) == [other["completion"]], params
    assert completions(server, path, q="2 + 2 =", step=2, ungraded=False) == ["step 2, place 0"]
    assert completions(server, path, group=1) == ["step 1, place 2", three]
    assert completions(server, path, row=0) == ["step 1, place 0", one, "step 2, place 0"]
    assert server.user.get(path, params={"reward_lt": "nan"}).status_code == 400


def found_by_pages(server: Server, path: str, **params: Any) -> list[str]:
    """Ids of all matches, with the cursor `last_id` after each page."""
    ids: list[str] = []
    after: dict[str, str] = {}
    for _ in range(100):
        page = server.user.json(path, params={**params, **after})
        assert len(page["data"]) <= params["limit"]
        ids += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            return ids
        assert page["last_id"] != after.get("after"), "a page must move on"
        after = {"after": page["last_id"]}
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_a_search_join_without_gaps_though_each_reads_little(
    server: Server,
    claim: dict[str, Any],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
) -> None:
    fill(server, claim, {1: 5, 2: 1, 3: 7, 5: 2, 8: 6})
    expected = [
        one["id"]
        for one in server.user.json(path, params={"limit": 100, "order": order})["data"]
        if one["reward"] == 1.0
    ]
    assert len(expected) == 9
    monkeypatch.setattr(sample_search, "MAX_READ_SAMPLES", 3)
    for limit in (1, 2, 3, 100):
        found = found_by_pages(server, path, limit=limit, order=order, reward_gt=0.5)
        assert found == expected, limit
    assert found_by_pages(server, path, limit=5, order=order, q="not there") == []


def test_prompts_that_teach_most_come_first(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    rewards = {0: (0.5, 0.5), 1: (0.0, 1.0), 2: (None, 1.0), 3: (0.2, 0.6)}
    samples = [
        sample(4, 2 * group + place, group=group, reward=reward, completion=f"{group}.{place}")
        for place in (0, 1)
        for group, pair in rewards.items()
        for reward in (pair[place],)
    ]
    report(server, claim, {4: samples})
    whole = ["1.0", "1.1", "3.0", "3.1", "0.0", "0.1", "2.0", "2.1"]
    assert completions(server, path, step=4, sort="spread") == whole
    first = server.user.json(path, params={"step": 4, "sort": "spread", "limit": 3})
    assert [one["completion"] for one in first["data"]] == whole[:3]
    rest = completions(server, path, step=4, sort="spread", after=first["last_id"])
    assert (first["has_more"], rest) == (True, whole[3:])
    assert completions(server, path, step=4, sort="spread", reward_gt=0.7) == ["1.1", "2.1"]
    for params in ({}, {"step": 4, "after": "ftsample-x-1-1"}):
        refused = server.user.get(path, params={"sort": "spread", **params})
        assert refused.status_code == 400, params


def test_steps_tell_their_count_and_mean_reward(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    fill(server, claim, {1: 4, 3: 2})
    server.worker.report(claim, events=[metrics(3, 3, reward=0.25, kl=1.0)])
    page = server.user.json(f"{path}/steps")
    facts = [(one["step"], one["count"], one["reward"]) for one in page["data"]]
    assert facts == [(1, 4, None), (3, 2, 0.25)]
    rest = server.user.json(f"{path}/steps", params={"after": "1"})
    assert [one["id"] for one in rest["data"]] == ["3"]
    assert server.user.get(f"{path}/steps?after=x").status_code == 400


def test_damaged_files_end_no_search(server: Server, claim: dict[str, Any], path: str) -> None:
    good = packed([sample(2, n) for n in range(4)])
    cut = told(server, claim, 1, 1, packed([sample(1, n) for n in range(9)]))
    cut["files"] = server.worker.store(claim, {"x.jsonl.gz": b"no gzip"})
    server.worker.report(claim, events=[cut, told(server, claim, 2, 2, good)])
    assert completions(server, path, reward_gt=0.5) == ["step 2, place 1", "step 2, place 3"]
    assert completions(server, path, step=1, sort="spread") == []
