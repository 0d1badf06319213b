"""`tunesmith storage`: stored bytes, free disk, and the last runs of the janitor.

The janitor is the server's periodic task.
"""

from __future__ import annotations

import typer

from tunesmith_schema import JanitorStatus, OrganizationStorage, StoredBytes

from .output import AsJson, age, moment, show_fields, show_json, show_table, size
from .session import connected


def storage(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show stored bytes, free disk and the janitor's last runs. Needs an admin key."""
    with connected(ctx) as client:
        report = client.admin.organization.storage.retrieve()
    if as_json:
        show_json(report)
        return
    show_fields([*_of_store(report), *_of_janitor(report.janitor)])
    typer.echo()
    show_table(
        ("PROJECT", "FILES", "UPLOADS", "MODELS", "RESUME POINTS", "SAMPLES", "TOTAL"),
        [
            *((project.name, *_sizes(project.stored)) for project in report.projects),
            ("all", *_sizes(report.stored)),
        ],
    )


def _of_store(report: OrganizationStorage) -> list[tuple[str, object]]:
    free, disk = report.free_bytes, report.disk_bytes
    return [
        ("store", report.kind),
        ("in the store", size(report.content_bytes)),
        ("free", "" if free is None or disk is None else f"{size(free)} of {size(disk)}"),
    ]


def _of_janitor(janitor: JanitorStatus) -> list[tuple[str, object]]:
    plural = "" if janitor.removed_objects == 1 else "s"
    removed = f"{janitor.removed_objects:,} object{plural}, {size(janitor.removed_bytes)}"
    return [
        ("last round", _run(janitor.round_at, janitor.round_seconds)),
        ("last sweep", _run(janitor.sweep_at, janitor.sweep_seconds)),
        ("next sweep by", moment(janitor.next_sweep_at)),
        ("last removed", janitor.removed_at and f"{removed}, {age(janitor.removed_at)} ago"),
        ("last error", janitor.error_at and f"{janitor.error}, {age(janitor.error_at)} ago"),
    ]


def _run(started_at: int | None, seconds: float | None) -> str:
    if started_at is None or seconds is None:
        return ""
    return f"{age(started_at)} ago, took {seconds:.2f} s"


def _sizes(stored: StoredBytes) -> tuple[str, ...]:
    kinds = (stored.files, stored.uploads, stored.models, stored.resume_points, stored.samples)
    return tuple(size(value) for value in (*kinds, stored.total))


def add_to(app: typer.Typer) -> None:
    app.command("storage")(storage)
