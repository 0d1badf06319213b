"""Everything that a request can carry has a bound: a new field without one fails here."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.openapi.utils import get_openapi

from tunesmith_server.api import (
    adapters,
    chat,
    events,
    files,
    health,
    internal,
    job_create,
    jobs,
    me,
    models,
    organization,
    permissions,
    uploads,
)
from tunesmith_server.body_limits import JSON_BYTES, body_limit

from .actors import Server

ROUTERS = (
    *(adapters, chat, events, files, health, internal, job_create, jobs, me, models),
    *(organization, permissions, uploads),
)
MAX_WIDTH = 1_000_000

UNBOUNDED = {
    "ReadingResult.row_hashes: string": "5 MB: eight bytes for each of at most 500,000 rows",
}
"""Fields without a bound, each with the reason."""


def document(module: Any) -> dict[str, Any]:  # Any: a module; JSON
    """The OpenAPI document of a router, also of one that the public document leaves out."""
    routes = module.router.routes
    hidden = [route for route in routes if not route.include_in_schema]
    for route in hidden:
        route.include_in_schema = True
    try:
        return get_openapi(title="t", version="1", routes=routes)
    finally:
        for route in hidden:
            route.include_in_schema = False


def inputs(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every parameter and every body, with its schema."""
    for path, operations in whole["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", []):
                yield f"{name} {parameter['in']} {parameter['name']}", parameter["schema"]
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                yield f"{name} {kind}", content["schema"]


def unbounded(
    node: dict[str, Any], whole: dict[str, Any], name: str, seen: set[str]
) -> Iterator[str]:
    """Yield the name of each value in a JSON Schema that may be of any size."""
    if "x-max-bytes" in node or "enum" in node or "const" in node:
        return
    if "$ref" in node:
        target = node["$ref"].rpartition("/")[2]
        if target not in seen:
            seen.add(target)
            yield from unbounded(whole["components"]["schemas"][target], whole, target, seen)
        return
    members = [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]
    for member in members:
        yield from unbounded(member, whole, name, seen)
    kind = node.get("type")
    if kind in ("integer", "number"):
        low = node.get("minimum", node.get("exclusiveMinimum"))
        high = node.get("maximum", node.get("exclusiveMaximum"))
        if low is None or high is None or high > 2**63 or low < -(2**63):
            yield f"{name}: {kind}"
    elif kind == "string":
        width = node.get("maxLength", pattern_width(node.get("pattern")))
        if width > MAX_WIDTH and node.get("contentMediaType") != "application/octet-stream":
            yield f"{name}: string"
    elif kind == "array":
        if node.get("maxItems", MAX_WIDTH) >= MAX_WIDTH:
            yield f"{name}: array"
        yield from unbounded(node["items"], whole, f"{name}[]", seen)
    elif kind == "object":
        for field, inner in node.get("properties", {}).items():
            yield from unbounded(inner, whole, f"{name}.{field}", seen)
        rest = node.get("additionalProperties", True)
        if rest is not False and not node.get("properties"):
            if node.get("maxProperties", MAX_WIDTH) >= MAX_WIDTH or rest is True:
                yield f"{name}: object"
            else:
                yield from unbounded(rest, whole, f"{name}{{}}", seen)
                yield from unbounded(
                    node.get("propertyNames", {"type": "string"}), whole, f"{name} key", seen
                )
    elif kind not in ("boolean", "null") and not members:
        yield f"{name}: any"


def pattern_width(pattern: str | None) -> int:
    """The longest text that a pattern matches."""
    if pattern is None or not pattern.endswith("$"):
        return MAX_WIDTH + 1
    [_, longest] = re._parser.parse(pattern).getwidth()  # type: ignore[attr-defined]  # no public name
    return int(longest)


@pytest.mark.parametrize("module", ROUTERS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_input_has_a_bound(module: Any) -> None:
    whole = document(module)
    seen: set[str] = set()
    found = [
        problem
        for name, schema in inputs(whole)
        for problem in unbounded(schema, whole, name, seen)
        if problem not in UNBOUNDED
    ]
    assert found == []


def test_the_walk_finds_what_has_no_bound() -> None:
    bad = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0},
            "b": {"type": "string"},
            "c": {"type": "array", "items": {"type": "string", "maxLength": 3}},
            "d": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
            "e": {},
            "f": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "g": {"type": "string", "pattern": "^[a-f]{1,9}$"},
            "h": {"type": "string", "pattern": "^[a-f]+$"},
        },
    }
    found = [name[1] for name in unbounded(bad, {}, "", set())]
    assert found == ["a", "b", "c", "d", "e", "f", "h"]


def test_the_walk_sees_every_route_with_a_body() -> None:
    """The other tests would pass if the documents were empty."""
    named = [name for module in ROUTERS for name, _ in inputs(document(module))]
    assert "POST /jobs/{job_id}/report application/json" in named
    assert "POST /fine_tuning/jobs application/json" in named
    assert "GET /fine_tuning/jobs query after" in named
    assert "POST /files multipart/form-data" in named
    assert len(named) > 80


WIDE = "x" * 4_000_000
DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "steps": ({"recipe": {"max_steps": 10**40}}, "recipe.max_steps", "at most 2147483647"),
    "digits": ({"recipe": {"max_steps": 10**4000}}, "recipe.max_steps", "at most 2147483647"),
    "norm": ({"recipe": {"max_grad_norm": 1e300}}, "recipe.max_grad_norm", "at most 1000000"),
    "infinite": ({"recipe": {"max_grad_norm": float("inf")}}, "recipe.max_grad_norm", "finite"),
    "NaN": ({"recipe": {"learning_rate": float("nan")}}, "recipe.learning_rate", "must be"),
    "modules": (
        {"recipe": {"lora": {"target_modules": ["x" * 250] * 1000}}},
        "recipe.lora.target_modules", "at most 65,536 bytes",
    ),
    "a module": (
        {"recipe": {"lora": {"target_modules": ["x" * 900_000]}}},
        "recipe.lora.target_modules", "at most 256 characters",
    ),
    "tokens": (
        {"recipe": {"add_tokens": [f"{n:<200}" for n in range(1000)]}},
        "recipe.add_tokens", "at most 65,536 bytes",
    ),
    "a file's id": ({"training_file": "x" * 900_000}, "training_file", "at most 64 characters"),
    "a key": ({"metadata": {"k" * 900_000: "v"}}, "metadata", "at most 64"),
    "pairs": ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16 pairs"),
    "depth": ({"integrations": DEEP}, "integrations", "at most 64 levels"),
    "a grader's schema": (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": {
            "type": "json_schema", "json_schema": {"enum": ["x" * 900] * 100}}}}},
        "method.reinforcement.grader.json_schema", "at most 65,536 bytes",
    ),
    "a number in a grader's schema": (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": {
            "type": "json_schema", "json_schema": {"maximum": float("inf")}}}}},
        "method.reinforcement.grader.json_schema", "must be a finite number",
    ),
    "a grader": (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": {
            "type": "multi", "calculate_output": "a1", "graders": {
                f"a{n}": {"type": "string_check", "input": "{{sample.output_text}}",
                          "reference": "x" * 90_000, "operation": "eq"} for n in range(8)}}}}},
        "method.reinforcement.grader", "at most 262,144 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_value_beyond_its_bound_is_refused_by_name(server: Server, name: str) -> None:
    body, param, words = BAD[name]
    file_id = server.good_file()
    rest = {name: value for name, value in body.items() if name != "training_file"}
    reply = server.create_reply(body.get("training_file", file_id), **rest)
    assert reply.status_code == 400, reply.text[:500]
    error = reply.json()["error"]
    assert (error["param"], words in error["message"]) == (param, True), error["message"][:300]
    assert len(reply.content) < 2000
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []


def test_four_megabytes_of_target_modules_are_not_read(server: Server) -> None:
    reply = server.create_reply("file-1", recipe={"lora": {"target_modules": [WIDE]}})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"k" * 900_000: 1}, id="a key"),
        pytest.param({"recipe": {"k" * 900_000: 1}}, id="a recipe's key"),
        pytest.param({"recipe": {"patches": ["k" * 900_000]}}, id="a patch"),
        pytest.param({"metadata": {"k" * 900_000: 1}}, id="a key of metadata"),
        pytest.param({"metadata": {"\ud800": 1}}, id="half a character"),
        pytest.param({"\ud800": 1}, id="half a character as key"),
        pytest.param({"method": {"type": "k" * 900_000}}, id="a method"),
    ],
)
def test_a_refusal_is_short_and_cheap(server: Server, body: dict[str, Any]) -> None:
    seconds = []
    for _ in range(3):  # other programs on the machine slow single tries
        began = time.process_time()
        reply = server.create_reply("file-1", **body)
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.25, "the key was compared with every field"
    assert (reply.status_code, len(reply.content) < 2000) == (400, True), reply.text[:300]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000 + "]" * 100_000, id="100,000 levels"),
        pytest.param('{"seed": ' + "9" * 10_000 + "}", id="10,000 digits"),
    ],
)
def test_json_that_python_cannot_read_is_refused(server: Server, text: str) -> None:
    headers = {"content-type": "application/json"}
    reply = server.user.post("/v1/fine_tuning/jobs", content=text.encode(), headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
    assert "the body is not valid JSON" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([("file", ("a", b"x"))] * 2, id="two files"),
        pytest.param([("file", ("a", b"x")), *[("x", (None, b"x"))] * 20], id="20 fields"),
        pytest.param([("file", ("a", b"x")), ("purpose", (None, b"x" * 50_000))], id="a field"),
    ],
)
def test_a_form_has_one_file_and_few_fields(server: Server, parts: list[Any]) -> None:
    reply = server.user.post("/v1/files", files=[*parts, ("purpose", (None, b"fine-tune"))])
    assert reply.status_code == 400, reply.text
    assert server.user.json("/v1/files")["data"] == []


def test_a_body_has_a_limit_by_route() -> None:
    assert body_limit("/v1/fine_tuning/jobs", 1) == JSON_BYTES == 1024 * 1024
    assert body_limit("/v1/unknown", 10**12) == JSON_BYTES
    assert body_limit("/v1/uploads", 10**12) < JSON_BYTES
    assert body_limit("/v1/files", 1000) < 100_000


@pytest.mark.parametrize("path", ["{}", "{}/events", "{}/metrics?after=", "?after="])
def test_a_long_parameter_is_refused(server: Server, path: str) -> None:
    long = "x" * 3000
    path = path.format(f"/{long}") if "{}" in path else path
    path = f"/v1/fine_tuning/jobs{path}" + (long if path.endswith("=") else "")
    reply = server.user.get(path)
    assert reply.status_code == 400, reply.text
    assert "at most" in reply.json()["error"]["message"]
    assert len(reply.content) < 1000


def test_json_numbers_stay_within_64_bits(server: Server) -> None:
    body = {"recipe": json.loads('{"seed": 1e999}')}
    reply = server.user.post(
        "/v1/fine_tuning/jobs/ftjob-1/fork",
        content=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    assert reply.status_code in (400, 404)
    grown = json.dumps({"recipe": {"max_steps": 2**70}}).encode()
    reply = server.user.post(
        "/v1/fine_tuning/jobs/ftjob-1/fork",
        content=grown,
        headers={"content-type": "application/json"},
    )
    assert "64 bits" in reply.json()["error"]["message"]
