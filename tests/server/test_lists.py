"""Lists: newest or oldest first, page by page without gaps or repetitions."""

from __future__ import annotations

from typing import Any

import pytest

from .actors import Server
from .callers import event, metrics


def pages(server: Server, path: str, **params: Any) -> list[str]:
    """Ids of all items, read page by page as the openai client does."""
    ids: list[str] = []
    while True:
        page = server.user.json(path, params={**params, **({"after": ids[-1]} if ids else {})})
        assert page["object"] == "list"
        assert len(page["data"]) <= params["limit"]
        assert page["first_id"] == (page["data"][0]["id"] if page["data"] else None)
        assert page["last_id"] == (page["data"][-1]["id"] if page["data"] else None)
        ids += [item["id"] for item in page["data"]]
        if not page["has_more"]:
            return ids


@pytest.fixture
def filled(server: Server) -> dict[str, list[str]]:
    """Ids of seven items of each list, oldest first."""
    files = [server.good_file() for _ in range(7)]
    jobs = [server.create_job(files[0]) for _ in range(7)]
    claim = server.worker.claim()
    for number in range(1, 8):
        files_of_step = server.worker.store(claim, {"a.safetensors": b"x" * number})
        checkpoint = event(2 * number, kind="checkpoint", data={"step": number})
        server.worker.report(
            claim,
            events=[
                metrics(2 * number - 1, number, train_loss=1 / number),
                {**checkpoint, "files": files_of_step},
            ],
        )
    job = f"/v1/fine_tuning/jobs/{claim['job_id']}"
    newest_first = {"limit": 1000, "order": "asc"}
    return {
        "/v1/files": files,
        "/v1/fine_tuning/jobs": jobs,
        **{
            f"{job}/{name}": [
                item["id"]
                for item in server.user.json(f"{job}/{name}", params=newest_first)["data"]
            ]
            for name in ("events", "metrics", "checkpoints")
        },
    }


def test_pages_join_to_the_whole_in_both_orders(
    server: Server, filled: dict[str, list[str]]
) -> None:
    for path, ids in filled.items():
        assert len(ids) >= 7, path
        for limit in (1, 3, 7, 100):
            assert pages(server, path, limit=limit, order="asc") == ids, path
            assert pages(server, path, limit=limit, order="desc") == ids[::-1], path


def test_newest_come_first_unless_asked_otherwise(
    server: Server, filled: dict[str, list[str]]
) -> None:
    for path, ids in filled.items():
        expected = ids if path.endswith("/metrics") else ids[::-1]
        assert pages(server, path, limit=100) == expected, path


def test_an_unknown_cursor_is_refused(server: Server, filled: dict[str, list[str]]) -> None:
    other = "ftevent-0123456789abcdef01234567-1"
    for path in filled:
        for after in ("nonsense", other, "\u00b2", "9" * 30, "9" * 5000, "-1", "\x00"):
            reply = server.user.get(path, params={"after": after})
            assert reply.status_code == 400, (path, after, reply.text)
            assert reply.json()["error"]["param"] in ("after", None)


def test_wrong_paging_is_refused(server: Server, filled: dict[str, list[str]]) -> None:
    for path in filled:
        for query in ("limit=0", "limit=-1", "limit=x", "order=up", "limit=10001"):
            reply = server.user.get(f"{path}?{query}")
            assert reply.status_code == 400, (path, query)
            assert reply.json()["error"]["param"] == query.partition("=")[0]


def test_an_empty_list_is_a_page(server: Server) -> None:
    expected = {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
    for path in ("/v1/files", "/v1/fine_tuning/jobs"):
        assert server.user.json(path) == expected


def test_the_last_page_knows_that_it_is(server: Server, filled: dict[str, list[str]]) -> None:
    for path, ids in filled.items():
        page = server.user.json(path, params={"limit": len(ids)})
        assert page["has_more"] is False, path


def test_files_can_be_listed_by_purpose(server: Server) -> None:
    wanted = server.upload(purpose="assistants")
    server.upload()
    page = server.user.json("/v1/files", params={"purpose": "assistants"})
    assert [file["id"] for file in page["data"]] == [wanted]


def test_jobs_can_be_listed_by_metadata(server: Server) -> None:
    file_id = server.good_file()
    red = server.create_job(file_id, metadata={"team": "red", "run": "1"})
    blue = server.create_job(file_id, metadata={"team": "blue", "run": "1"})
    empty = server.create_job(file_id, metadata={"team": ""})
    bare = server.create_job(file_id)

    def found(query: str) -> set[str]:
        page = server.user.json(f"/v1/fine_tuning/jobs?{query}")
        return {job["id"] for job in page["data"]}

    assert found("metadata[team]=red") == {red}
    assert found("metadata%5Bteam%5D=blue") == {blue}
    assert found("metadata[run]=1") == {red, blue}
    assert found("metadata[run]=1&metadata[team]=red") == {red}
    assert found("metadata[team]=") == {empty}
    assert found("metadata[team]=green") == set()
    assert found("metadata[other]=red") == set()
    assert found("metadata=null") == {bare}
    assert found("") == {red, blue, empty, bare}


@pytest.mark.parametrize(
    "key", ['a"b', "a.b", "$", "a[0]", "a]b", "a b", "ü", "a\\b", "'", "*", "#"]
)
def test_any_metadata_key_can_be_asked_for(server: Server, key: str) -> None:
    job_id = server.create_job(server.good_file(), metadata={key: "x"})
    server.create_job(server.good_file(), metadata={"other": "x"})
    page = server.user.json("/v1/fine_tuning/jobs", params={f"metadata[{key}]": "x"})
    assert [job["id"] for job in page["data"]] == [job_id]
