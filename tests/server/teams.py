"""Two projects with one of everything in each, for the tests of isolation."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from tunesmith_schema import Role
from tunesmith_server.models import DEFAULT_PROJECT
from tunesmith_server.services import keys

from .actors import ROWS, Server
from .callers import VERDICT, Caller, metrics


def caller(server: Server, role: Role, project_id: str = DEFAULT_PROJECT, **limits: Any) -> Caller:
    """Return a client with a new key of this role."""
    with server.database.write.begin() as session:
        _, key = keys.create(session, role, role=role, project_id=project_id, **limits)
    return Caller(server.client, key)


@dataclass(frozen=True, kw_only=True)
class Team:
    """One of everything in a project, by the name of the path parameter that names it."""

    server: Server
    """The app, whose `user` is a member of the project."""
    project_id: str
    file_id: str
    upload_id: str
    part_id: str
    job_id: str
    """Succeeded job with a checkpoint."""
    model: str
    adapter_id: str
    checkpoint_id: str
    evaluation_id: str
    permission_id: str
    key_id: str
    user_id: str
    link_id: str
    reservation_id: str
    session_id: str

    def value(self, parameter: str) -> str:
        """Return the value of a path parameter."""
        if parameter == "name":
            return "adapter_config.json"
        if parameter == "file_name":
            return "log.txt"
        if parameter == "worker":
            return "here"
        return str(getattr(self, parameter))


def new_project(admin: Caller, name: str = "Team Two") -> str:
    reply = admin.post("/v1/organization/projects", json={"name": name})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def team(server: Server, admin: Caller, project_id: str, share_with: str) -> Team:
    """Fill a project. Its model is not shared, but another project has a permission of a
    checkpoint."""
    mine = replace(server, user=caller(server, "member", project_id))
    user, headers = mine.user, {"openai-project": project_id}
    upload = {"bytes": 9, "filename": "a.jsonl", "mime_type": "x", "purpose": "fine-tune"}
    upload_id = user.post("/v1/uploads", json=upload).json()["id"]
    part = user.post(f"/v1/uploads/{upload_id}/parts", files={"data": b"{}\n{}\n{}\n"})
    job_id = mine.create_job(mine.good_file(ROWS + project_id.encode()))
    claim = mine.worker.claim()
    weights = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"1"}
    checkpoint = {
        "source_seq": 2, "created_at": 1.0, "message": "c", "kind": "checkpoint",
        "data": {"step": 1, "kind": "lora"}, "files": mine.worker.store(claim, weights),
    }  # fmt: skip
    mine.worker.report(claim, events=[metrics(1, 1, train_loss=1.0), checkpoint])
    mine.worker.succeed(claim, verification=json.dumps(VERDICT).encode())
    job = mine.job(job_id)
    [saved] = user.json(f"/v1/fine_tuning/jobs/{job_id}/checkpoints")["data"]
    path = f"/v1/fine_tuning/checkpoints/{job['fine_tuned_model']}/permissions"
    shared = admin.post(path, json={"project_ids": [share_with]}, headers=headers)
    assert shared.status_code == 200, shared.text
    request = {"model": job["fine_tuned_model"], "file": job["training_file"]}
    evaluation = user.post("/v1/evaluations", json=request)
    assert evaluation.status_code == 200, evaluation.text
    organization = "/v1/organization"
    email = f"{project_id}@example.org"
    person = admin.post(f"{organization}/users", json={"email": email, "name": "P"}).json()["id"]
    members = f"{organization}/projects/{project_id}"
    assert admin.post(f"{members}/users", json={"user_id": person}).status_code == 200
    key = admin.post(f"{members}/api_keys", json={"name": "spare", "user_id": person}).json()
    window = {"worker": "here", "starts_at": 4_000_000_000}
    screen = user.post("/v1/sessions", json={"name": "wall"})
    link = user.post(f"/v1/fine_tuning/jobs/{job_id}/links")
    assert link.status_code == 200, link.text
    return Team(
        server=mine,
        link_id=link.json()["id"],
        session_id=screen.json()["id"],
        reservation_id=admin.post("/v1/reservations", json=window).json()["id"],
        project_id=project_id,
        file_id=job["training_file"],
        upload_id=upload_id,
        part_id=part.json()["id"],
        job_id=job_id,
        model=job["fine_tuned_model"],
        adapter_id=job["adapter_id"],
        checkpoint_id=saved["id"],
        evaluation_id=evaluation.json()["id"],
        permission_id=shared.json()["data"][0]["id"],
        key_id=key["id"],
        user_id=person,
    )


def two_teams(server: Server) -> tuple[Caller, Team, Team]:
    """Return an admin, the team of the default project, and another team. No model is shared
    between the two."""
    admin = caller(server, "admin")
    other, third = new_project(admin), new_project(admin, "third")
    return (
        admin,
        team(server, admin, DEFAULT_PROJECT, third),
        team(server, admin, other, third),
    )
