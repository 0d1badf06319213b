"""`tunesmith projects`: projects, their members and their keys."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from tunesmith._sdk.organization import UNSET
from tunesmith_schema import Project, ProjectRole, Verb

from .output import (
    AsJson,
    Limit,
    age,
    moment,
    show_done,
    show_fields,
    show_json,
    show_page,
    size,
)
from .session import connected, fail

app = typer.Typer(help="Projects, their members and their API keys.", no_args_is_help=True)
members = typer.Typer(help="Members of a project.", no_args_is_help=True)
keys = typer.Typer(help="API keys of a project.", no_args_is_help=True)
app.add_typer(members, name="members")
app.add_typer(keys, name="keys")

ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="proj-...")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="key-...")]
User = Annotated[str, typer.Argument(metavar="USER", help="E-mail address, or user-...")]
Role = Annotated[str, typer.Option(help="viewer, member or lead.")]
Quota = Annotated[
    str | None,
    typer.Option(metavar="GIB", help="Quota of stored GiB; `none` removes the quota."),
]
BaseModels = Annotated[
    list[str] | None,
    typer.Option("--base-model", help="Allowed base model; repeatable. `all`: no restriction."),
]


def project_role(role: str) -> ProjectRole:
    if role not in get_args(ProjectRole):
        fail(f"role {role!r} is not viewer, member or lead", status=2)
    return cast(ProjectRole, role)


@app.command("list")
def list_projects(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List projects."""
    with connected(ctx) as client:
        show_page(
            client.admin.organization.projects.list(limit=limit),
            as_json,
            ("ID", "NAME", "IN MODEL NAMES", "AGE"),
            lambda item: (item.id, item.name, item.slug, age(item.created_at)),
        )


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the project.")],
    quota: Quota = None,
    base_models: BaseModels = None,
    as_json: AsJson = False,
) -> None:
    """Create a project."""
    with connected(ctx) as client:
        project = client.admin.organization.projects.create(
            name=name, max_bytes=_bytes(quota), base_models=_models(base_models)
        )
        _show(project, as_json)


@app.command("show")
def show(ctx: typer.Context, project_id: ProjectId, as_json: AsJson = False) -> None:
    """Show a project."""
    with connected(ctx) as client:
        _show(client.admin.organization.projects.retrieve(project_id), as_json)


@app.command("update")
def update(
    ctx: typer.Context,
    project_id: ProjectId,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    quota: Quota = None,
    base_models: BaseModels = None,
    as_json: AsJson = False,
) -> None:
    """Change a project's name, quota or base models."""
    with connected(ctx) as client:
        project = client.admin.organization.projects.update(
            project_id,
            name=name,
            max_bytes=UNSET if quota is None else _bytes(quota),
            base_models=UNSET if base_models is None else _models(base_models),
        )
        _show(project, as_json)


@app.command("archive")
def archive(ctx: typer.Context, project_id: ProjectId, as_json: AsJson = False) -> None:
    """Archive a project: its keys stop working immediately."""
    with connected(ctx) as client:
        _show(client.admin.organization.projects.archive(project_id), as_json)


def _bytes(quota: str | None) -> int | None:
    if quota is None or quota == "none":
        return None
    try:
        return int(float(quota) * 1024**3)
    except (ValueError, OverflowError):
        fail(f"--quota {quota!r} is not a number of GiB", hint="for example 200, or none", status=2)


def _models(names: list[str] | None) -> list[str] | None:
    return None if names in (None, ["all"]) else names


def _show(project: Project, as_json: bool) -> None:
    if as_json:
        show_json(project)
        return
    show_fields(
        [
            ("id", project.id),
            ("name", project.name),
            ("in model names", project.slug),
            ("status", project.status),
            ("created", moment(project.created_at)),
            ("archived", moment(project.archived_at)),
            ("quota", "none" if project.max_bytes is None else size(project.max_bytes)),
            (
                "base models",
                "all" if project.base_models is None else ", ".join(project.base_models),
            ),
        ]
    )


@members.command("list")
def list_members(
    ctx: typer.Context, project_id: ProjectId, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """List the members of a project."""
    with connected(ctx) as client:
        show_page(
            client.admin.organization.projects.users.list(project_id, limit=limit),
            as_json,
            ("ID", "E-MAIL", "NAME", "ROLE"),
            lambda item: (item.id, item.email, item.name, item.role),
        )


@members.command("add")
def add_member(
    ctx: typer.Context,
    project_id: ProjectId,
    user: User,
    role: Role = "member",
    as_json: AsJson = False,
) -> None:
    """Add a user to a project, or change a member's role."""
    chosen = project_role(role)
    with connected(ctx) as client:
        is_email = "@" in user
        member = client.admin.organization.projects.users.create(
            project_id,
            email=user if is_email else None,
            user_id=None if is_email else user,
            role=chosen,
        )
        show_done(member, as_json, f"{member.email} is {member.role} of {project_id}")


@members.command("remove")
def remove_member(
    ctx: typer.Context,
    project_id: ProjectId,
    user_id: Annotated[str, typer.Argument(metavar="USER", help="user-...")],
    as_json: AsJson = False,
) -> None:
    """Remove a member and revoke the member's keys of the project."""
    with connected(ctx) as client:
        deleted = client.admin.organization.projects.users.delete(user_id, project_id=project_id)
        show_done(deleted, as_json, f"removed {deleted.id}")


@keys.command("list")
def list_keys(
    ctx: typer.Context, project_id: ProjectId, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """List the keys of a project, without their secrets."""
    with connected(ctx) as client:
        show_page(
            client.admin.organization.projects.api_keys.list(project_id, limit=limit),
            as_json,
            ("ID", "NAME", "KEY", "ROLE", "LAST USE", "EXPIRES"),
            lambda item: (
                item.id,
                item.name,
                item.redacted_value,
                item.role,
                age(item.last_used_at) if item.last_used_at else "never",
                moment(item.expires_at) or "never",
            ),
        )


@keys.command("create")
def create_key(
    ctx: typer.Context,
    project_id: ProjectId,
    name: Annotated[str, typer.Argument(help="Name of the key, for example its purpose.")],
    role: Role = "member",
    verbs: Annotated[
        list[str] | None,
        typer.Option("--verb", help="Allow only `read`, `write`, `chat` or `manage`. Repeatable."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, help="Days until the key expires.")
    ] = None,
    user_id: Annotated[
        str | None, typer.Option("--user", help="Member who owns the key: user-...")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. The key is shown only once, by this command."""
    chosen = project_role(role)
    for verb in verbs or []:
        if verb not in get_args(Verb):
            fail(f"verb {verb!r} is not one of {', '.join(get_args(Verb))}", status=2)
    with connected(ctx) as client:
        key = client.admin.organization.projects.api_keys.create(
            project_id,
            name=name,
            role=chosen,
            verbs=cast(list[Verb] | None, verbs),
            expires_in_seconds=None if days is None else int(days * 86_400),
            user_id=user_id,
        )
        if as_json:
            show_json(key)
        else:
            typer.echo(key.value)
            typer.echo(f"{key.id}, {key.name}: store the key now, it is not shown again", err=True)


@keys.command("revoke")
def revoke_key(
    ctx: typer.Context, project_id: ProjectId, key_id: KeyId, as_json: AsJson = False
) -> None:
    """Revoke a key immediately."""
    with connected(ctx) as client:
        deleted = client.admin.organization.projects.api_keys.delete(key_id, project_id=project_id)
        show_done(deleted, as_json, f"revoked {deleted.id}")
