"""Attacks of one project on another: a foreign id must answer exactly like an unknown id, after
the same SQL statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import sqlalchemy
from httpx2 import Response

from tunesmith_server.identity.policy import RULES

from .actors import ROWS, Server
from .teams import Team, caller, two_teams

JOBS = "/v1/fine_tuning/jobs"

Attack = tuple[str, str, dict[str, Any]]
"""Method, path, options; `{field}` stands for a foreign id, `[field]` for the attacker's own."""

COMMANDS = ("cancel", "pause", "resume", "stop", "fork", "retry")
OUTPUTS = (
    *("report", "evaluation", "events", "metrics", "checkpoints", "samples", "samples/steps"),
    *("self_check", "resume_points", "lineage", "files", "files/log.txt", "files/recipe.json"),
)


def attacks() -> Iterator[Attack]:
    yield from (("POST", f"{JOBS}/{{job_id}}/{verb}", {}) for verb in COMMANDS)
    yield from (("GET", f"{JOBS}/{{job_id}}/{part}", {}) for part in OUTPUTS)
    yield from _jobs()
    yield from _files()
    yield from _models()
    yield from _evaluations()
    yield from _organization()


def _jobs() -> Iterator[Attack]:
    yield "GET", f"{JOBS}/{{job_id}}", {}
    yield "DELETE", f"{JOBS}/{{job_id}}", {}
    yield "GET", f"{JOBS}/{{job_id}}/events?stream=true", {"headers": {"last-event-id": "1"}}
    yield "GET", f"{JOBS}?after={{job_id}}", {}
    yield "GET", f"{JOBS}/[job_id]/events?after=ftevent-{{job_hex}}-1", {}
    yield "GET", f"{JOBS}/[job_id]/checkpoints?after={{checkpoint_id}}", {}
    yield "GET", f"{JOBS}/[job_id]/samples?after=ftsample-{{job_hex}}-1-0", {}
    yield "POST", f"{JOBS}/[job_id]/fork", {"json": {"checkpoint": "{checkpoint_id}"}}
    for change in (
        {"training_file": "{file_id}"},
        {"validation_file": "{file_id}"},
        {"model": "{model}"},
    ):
        body = {"model": "tiny-llama", "training_file": "[file_id]", **change}
        yield "POST", JOBS, {"json": body}
    yield "GET", "/v1/fine_tuning/events?stream=true&jobs={job_id}", {}
    yield "GET", "/v1/fine_tuning/events?stream=true&jobs=[job_id],{job_id}:1", {}
    yield "GET", "/v1/fine_tuning/compare?jobs=[job_id],{job_id}", {}
    yield "GET", f"{JOBS}/{{job_id}}/links", {}
    yield "POST", f"{JOBS}/{{job_id}}/links", {}
    yield "DELETE", f"{JOBS}/{{job_id}}/links/{{link_id}}", {}
    yield "DELETE", f"{JOBS}/[job_id]/links/{{link_id}}", {}
    yield "PATCH", f"{JOBS}/{{job_id}}", {"json": {"name": "n"}}
    yield "GET", f"{JOBS}/{{job_id}}/metrics?format=columns", {}
    for query in (
        "forked_from={job_id}",
        "retry_of={job_id}",
        "text={job_id}",
        "text={model}",
        "model={model}",
        "owner={key_id}",
    ):
        yield "GET", f"{JOBS}?{query}", {}


def _files() -> Iterator[Attack]:
    for path in (
        "{file_id}",
        "{file_id}/content",
        "{file_id}/rows",
        "{file_id}/uses",
        "{file_id}/stats",
    ):
        yield "GET", f"/v1/files/{path}", {}
    for path in (
        "file-metrics-{job_hex}",
        "{file_id}/overlap?with=[file_id]",
        "[file_id]/uses?after={job_id}",
    ):
        yield "GET", f"/v1/files/{path}", {}
    yield "GET", "/v1/files/file-metrics-{job_hex}/content", {}
    yield "GET", "/v1/files/{file_id}/content", {"headers": {"range": "bytes=0-3"}}
    yield "DELETE", "/v1/files/{file_id}", {}
    yield "DELETE", "/v1/files/file-metrics-{job_hex}", {}
    yield "GET", "/v1/files?after={file_id}", {}
    yield "GET", "/v1/uploads/{upload_id}", {}
    yield "POST", "/v1/uploads/{upload_id}/cancel", {}
    yield "POST", "/v1/uploads/{upload_id}/complete", {"json": {"part_ids": ["{part_id}"]}}
    yield "POST", "/v1/uploads/[upload_id]/complete", {"json": {"part_ids": ["{part_id}"]}}
    yield "POST", "/v1/uploads/{upload_id}/parts", {"files": {"data": b"1234"}}


def _models() -> Iterator[Attack]:
    yield "GET", "/v1/models/{model}", {}
    yield "DELETE", "/v1/models/{model}", {}
    for query in ("after={model}", "base={model}", "text={model}"):
        yield "GET", f"/v1/models?{query}", {}
    yield "GET", "/v1/models/{model}/uses", {}
    yield "GET", "/v1/models/[model]/uses?after={job_id}", {}
    yield "GET", "/v1/adapters?after={adapter_id}", {}
    for path in ("", "/verification", "/content", "/content/adapter_config.json"):
        yield "GET", f"/v1/adapters/{{adapter_id}}{path}", {}
    permissions = "/v1/fine_tuning/checkpoints/{model}/permissions"
    yield "GET", permissions, {}
    yield "POST", permissions, {"json": {"project_ids": ["[project_id]"]}}
    yield "DELETE", f"{permissions}/{{permission_id}}", {}
    own = permissions.replace("{model}", "[model]")
    yield "DELETE", f"{own}/{{permission_id}}", {}
    yield "GET", f"{own}?after={{permission_id}}", {}
    message = {"role": "user", "content": "hi"}
    yield "POST", "/v1/chat/completions", {"json": {"model": "{model}", "messages": [message]}}
    yield "POST", "/v1/completions", {"json": {"model": "{model}", "prompt": "hi"}}


def _evaluations() -> Iterator[Attack]:
    one = "/v1/evaluations/{evaluation_id}"
    yield from (("GET", one, {}), ("POST", f"{one}/cancel", {}), ("DELETE", one, {}))
    yield "GET", "/v1/evaluations?after={evaluation_id}", {}
    yield "GET", "/v1/evaluations?model={model}", {}
    for change in ({"model": "{model}"}, {"against": "{model}"}, {"file": "{file_id}"}):
        body = {"model": "tiny-llama", "file": "[file_id]", **change}
        yield "POST", "/v1/evaluations", {"json": body}
    results = {"harness": "h", "tasks": [{"task": "t", "metrics": {"acc": 1.0}}]}
    stored = {"kind": "tasks", "model": "{model}", "task_results": results}
    yield "POST", "/v1/evaluations", {"json": stored}
    yield "GET", "/v1/models/{model}/tokenizer", {}


def _organization() -> Iterator[Attack]:
    yield "POST", "/v1/queue/keys/{key_id}", {"json": {"max_running_jobs": 0}}
    project = "/v1/organization/projects/{project_id}"
    for path in ("", "/users", "/api_keys", "/users/{user_id}", "/api_keys/{key_id}"):
        yield "GET", project + path, {}
    yield "POST", f"{project}/api_keys", {"json": {"name": "k"}}
    yield "POST", f"{project}/users", {"json": {"user_id": "{user_id}"}}
    yield "DELETE", f"{project}/api_keys/{{key_id}}", {}
    own = "/v1/organization/projects/[project_id]"
    yield "DELETE", f"{own}/api_keys/{{key_id}}", {}
    yield "POST", f"{own}/api_keys", {"json": {"name": "k", "user_id": "{user_id}"}}
    yield "GET", f"{own}/users?after={{user_id}}", {}
    yield "GET", f"{own}/api_keys?after={{key_id}}", {}
    for path in (project, own):
        yield "POST", f"{path}/users/{{user_id}}", {"json": {"role": "viewer"}}
        yield "DELETE", f"{path}/users/{{user_id}}", {}
    yield "GET", "/v1/files", {"headers": {"openai-project": "{project_id}"}}
    yield "DELETE", "/v1/sessions/{session_id}", {}


def aimed(document: Any, own: Team, foreign: dict[str, str]) -> Any:  # Any: JSON
    if isinstance(document, str):
        text = re.sub(r"\{(\w+)\}", lambda match: foreign[match[1]], document)
        return re.sub(r"\[(\w+)\]", lambda match: own.value(match[1]), text)
    if isinstance(document, list):
        return [aimed(item, own, foreign) for item in document]
    if isinstance(document, dict):
        return {key: aimed(value, own, foreign) for key, value in document.items()}
    return document


def names_of(other: Team) -> dict[str, str]:
    names = {
        field.name: getattr(other, field.name) for field in fields(other) if field.name != "server"
    }
    return names | {"job_hex": other.job_id.removeprefix("ftjob-")}


def unknown(names: dict[str, str]) -> dict[str, str]:
    """Names of the same form that nobody has."""
    return {key: re.sub(r"[0-9a-f](?=[^:]{0,3}$)", "0", name) for key, name in names.items()}


def normal(reply: Response, names: dict[str, str]) -> tuple[int, str]:
    text = re.sub(r"req-[0-9a-f]+", "REQUEST", reply.text)
    for key, name in sorted(names.items(), key=lambda item: -len(item[1])):
        text = text.replace(name, key.upper())
    return reply.status_code, text


def test_every_route_that_names_a_thing_is_attacked() -> None:
    """Routes that need an admin's key are not: an admin sees all projects."""
    tried = [(method, path.partition("?")[0]) for method, path, _ in attacks()]
    for route, verb in RULES.items():
        method, template = route.split(" ")
        if "{" not in template or verb == "administer":
            continue
        pattern = re.sub(r"{[^}]+}", "[^/]+", f"/v1{template}")
        aims = [path for sent, path in tried if sent == method and re.fullmatch(pattern, path)]
        assert any("{" in path for path in aims), f"add an attack on {route}"


def test_a_foreign_id_answers_like_an_unknown_id(server: Server) -> None:
    _, own, other = two_teams(server)
    lead = caller(server, "lead")
    before = _inventory(other)
    foreign = names_of(other)
    nobody = unknown(foreign)
    assert not {*foreign.values()} & {*nobody.values()}
    tried = list(attacks())
    assert len(tried) >= 60
    statements = statements_of(server)
    for method, path, options in tried:
        replies, costs = [], []
        for names in (foreign, nobody):
            statements.clear()
            reply = lead.send(method, aimed(path, own, names), **aimed(options, own, names))
            replies.append(normal(reply, names))
            costs.append(list(statements))
        assert replies[0] == replies[1], (method, path, options)
        assert costs[0] == costs[1], ("other statements, so another time", method, path, options)
        assert costs[0]
        status, text = replies[0]
        lists = (f"{JOBS}?", "/v1/evaluations?", "/v1/models?")
        searched = method == "GET" and path.startswith(lists) and "after" not in path
        assert status in (400, 404) or (searched and '"data":[]' in text), (method, path, status)
    assert _inventory(other) == before


def statements_of(server: Server) -> list[str]:
    """Return a list that grows by each SQL statement from now on. Equal statements are the part of
    an equal time that does not vary; tests/server/test_answer_times.py measures times."""
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement)

    sqlalchemy.event.listen(server.database.engine, "before_cursor_execute", note)
    return statements


def _inventory(team: Team) -> list[Any]:
    user = team.server.user
    paths = ("/v1/files", JOBS, "/v1/models", f"/v1/uploads/{team.upload_id}")
    return [user.json(path) for path in paths]


def test_lists_show_own_things_only(server: Server) -> None:
    _, own, other = two_teams(server)
    assert own.model.split(":")[2] == "default"
    assert other.model.split(":")[2] == "team-two"
    for mine, theirs in ((own, other), (other, own)):
        listed = str(_inventory(mine))
        for name in ("file_id", "job_id", "model", "adapter_id", "upload_id"):
            assert mine.value(name) in listed or name == "upload_id"
            assert theirs.value(name) not in listed, name


def test_a_caller_without_rights_learns_nothing(server: Server) -> None:
    viewer, known = caller(server, "viewer"), server.upload()
    refused = [viewer.delete(f"/v1/files/{file_id}") for file_id in (known, "file-0")]
    assert [reply.status_code for reply in refused] == [403, 403]
    assert len({reply.json()["error"]["message"] for reply in refused}) == 1


def test_filters_are_no_oracle(server: Server) -> None:
    _, own, other = two_teams(server)
    other.server.create_job(other.file_id, metadata={"secret": "yes"}, suffix="hush")
    user = own.server.user
    for query in ("metadata[secret]=yes", "text=hush", "state=queued", "method=supervised"):
        listed = user.json(f"{JOBS}?{query}")["data"]
        assert {job["id"] for job in listed} <= {own.job_id}, query
    sha256 = other.server.user.json(f"/v1/files/{other.file_id}")["sha256"]
    assert user.json("/v1/files", params={"sha256": sha256})["data"] == []


def test_equal_idempotency_keys_of_two_projects_are_two_requests(server: Server) -> None:
    admin, own, other = two_teams(server)
    header = {"idempotency-key": "same"}
    first = own.server.create_reply(own.file_id, headers=header)
    second = other.server.create_reply(other.file_id, headers=header)
    assert {first.status_code, second.status_code} == {200}
    assert first.json()["id"] != second.json()["id"]
    uploads = [
        sender.post(
            "/v1/files",
            files={"file": ("a.jsonl", ROWS)},
            data={"purpose": "fine-tune"},
            headers=header,
        )
        for sender in (own.server.user, other.server.user)
    ]
    assert uploads[0].json()["id"] != uploads[1].json()["id"]
    # An admin key acts in both projects; its own repeated key must not show the first job.
    body = {"model": "tiny-llama", "training_file": own.file_id}
    assert admin.post(JOBS, json=body, headers=header).status_code == 200
    elsewhere = {**header, "openai-project": other.project_id}
    body["training_file"] = other.file_id
    assert admin.post(JOBS, json=body, headers=elsewhere).status_code == 409


def test_a_job_counts_the_whole_queue_but_names_no_foreign_job(server: Server) -> None:
    _, own, other = two_teams(server)
    ahead = other.server.create_job(other.file_id)
    job_id = own.server.create_job(own.file_id)
    shown = own.server.user.get(f"{JOBS}/{job_id}")
    theirs = other.server.user.get(f"{JOBS}/{ahead}").json()["queue_position"]
    assert {shown.json()["queue_position"], theirs} == {1, 2}
    assert ahead not in shown.text


def test_a_shared_model_can_be_used_until_the_permission_is_withdrawn(server: Server) -> None:
    admin, own, other = two_teams(server)
    theirs = {"openai-project": other.project_id}
    path = f"/v1/fine_tuning/checkpoints/{other.model}/permissions"
    user = own.server.user
    assert user.get(f"/v1/models/{other.model}").status_code == 404
    body = {"project_ids": [own.project_id]}
    [permission] = admin.post(path, json=body, headers=theirs).json()["data"]
    assert other.model in [model["id"] for model in user.json("/v1/models")["data"]]
    assert user.get(f"/v1/adapters/{other.adapter_id}/content").status_code == 200
    assert user.delete(f"/v1/models/{other.model}").status_code == 403
    again = admin.post(path, json=body, headers=theirs).json()["data"]
    assert [item["id"] for item in again] == [permission["id"]]
    assert admin.delete(f"{path}/{permission['id']}", headers=theirs).status_code == 200
    assert user.get(f"/v1/models/{other.model}").status_code == 404
    assert user.get(f"/v1/adapters/{other.adapter_id}").status_code == 404
