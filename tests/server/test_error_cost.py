"""A refusal is short and cheap, however many items of a request are wrong.

Requests are validated in the event loop: while pydantic collects errors, nobody is answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from tunesmith_schema import RunReport
from tunesmith_server.api import internal
from tunesmith_server.services.leasing.received import ReceivedReport, Unreadable

from .actors import Server
from .test_bounds import ROUTERS

BYTES = 1_000_000
"""Just below the limit of a JSON body."""
SECONDS = 0.5


def filled(item: Any) -> list[Any]:  # Any: JSON
    return [item] * (BYTES // (len(json.dumps(item, separators=(",", ":"))) + 1))


def graded(grader: dict[str, Any]) -> dict[str, Any]:
    method = {"type": "reinforcement", "reinforcement": {"grader": grader}}
    return {"model": "m", "training_file": "f", "method": method}


JOBS, CHAT, TEXT = "/v1/fine_tuning/jobs", "/v1/chat/completions", "/v1/completions"
HOSTILE: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "prompts": lambda: (
        TEXT,
        {"model": "m", "prompt": [x for _ in range(BYTES // 5) for x in ("", 1)]},
    ),
    "lists": lambda: (
        TEXT,
        {"model": "m", "prompt": [x for _ in range(BYTES // 9) for x in ([""], [1])]},
    ),
    "messages": lambda: (CHAT, {"model": "m", "messages": filled({"x": 1})[:10_000]}),
    "parts": lambda: (
        CHAT,
        {"model": "m", "messages": filled({"role": "user", "content": [{"x": 1}] * 900})},
    ),
    "metadata": lambda: (
        JOBS,
        {
            "model": "m",
            "training_file": "f",
            "metadata": {str(number): 1 for number in range(BYTES // 11)},
        },
    ),
    "graders": lambda: (
        JOBS,
        graded(
            {
                "type": "multi",
                "calculate_output": "a",
                "graders": {str(number): {} for number in range(BYTES // 12)},
            }
        ),
    ),
    "a template": lambda: (
        JOBS,
        graded(
            {"type": "string_check", "input": "{{" * 50_000, "reference": "", "operation": "eq"}
        ),
    ),
}
"""Functions that make the bodies: all together are large."""


@pytest.mark.parametrize("name", HOSTILE)
def test_wrong_items_are_refused_quickly(server: Server, name: str) -> None:
    path, body = HOSTILE[name]()
    content = json.dumps(body, separators=(",", ":")).encode()
    assert len(content) < 1024 * 1024
    seconds: list[float] = []
    while min(seconds, default=SECONDS) >= SECONDS and len(seconds) < 3:
        began = time.process_time()  # other programs on the machine slow single tries
        reply = server.user.post(
            path, content=content, headers={"content-type": "application/json"}
        )
        seconds.append(time.process_time() - began)
    assert (reply.status_code, len(reply.content) < 2000) == (400, True), reply.text[:3000]
    assert min(seconds) < SECONDS


def test_a_workers_wrong_items_are_quarantined_quickly() -> None:
    report = {"worker_id": "w", "attempt": 1, "fence": 1}
    files = [{"x": 1}] * 9_000
    events = [{"source_seq": 1, "created_at": 1.0, "message": "", "files": files}] * 40
    phases = {str(number): "x" for number in range(4 * BYTES // 12)}
    began = time.process_time()
    read = ReceivedReport.model_validate(report | {"events": events})
    large = ReceivedReport.model_validate(report | {"run_report": {"phases": phases}})
    assert time.process_time() - began < SECONDS
    assert all(isinstance(event, Unreadable) for event in read.events)
    assert isinstance(large.run_report, Unreadable)
    assert "at most 262,144 bytes" in large.run_report.reason
    assert RunReport.model_fields["phases"], "the field of this test"


def nodes(schema: Any, parent: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """Every part of pydantic's schema, with the type of the part around it."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema, parent
        for name, value in schema.items():
            if name not in ("metadata", "serialization", "ref"):
                yield from nodes(value, str(schema.get("type", parent)))
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from nodes(value, parent)


def bodies() -> Iterator[tuple[str, Any]]:  # Any: pydantic's schema
    """The JSON bodies of users. The test above has those of workers."""
    for module in ROUTERS:
        for route in module.router.routes if module is not internal else ():
            assert isinstance(route, APIRoute)
            if route.body_field is not None:
                yield route.path, route.body_field._type_adapter.core_schema


def test_every_long_list_of_a_request_stops_at_its_first_error() -> None:
    """A new list with many items, or an object with any number of members, fails here."""
    found, lists = [], 0
    for path, schema in bodies():
        for node, parent in nodes(schema):
            lists += node["type"] == "list"
            long = node["type"] == "list" and node.get("max_length", 10**9) > 1024
            if long and not node.get("fail_fast") and not _is_json(node["items_schema"]):
                found.append((path, node))
            open_ended = node["type"] == "dict" and parent != "function-before"
            if open_ended and not _is_json(node.get("values_schema")):
                found.append((path, node))
    assert lists > 10
    assert found == []


def _is_json(schema: Any) -> bool:
    """Return True for any JSON, which gives no error for a single item."""
    return schema is None or schema["type"] in ("any", "definition-ref", "json-value")
