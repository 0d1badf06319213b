"""Form that changes name, notes and pin of a job. The job's page loads the form as a dialog."""

from __future__ import annotations

import hashlib

from pydantic import ValidationError
from starlette.responses import Response

from tunesmith_schema import ErrorCode, Job, JobPatch
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.portal.new_job import same_as
from tunesmith_server.portal.text import visible
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.training import job_edit, jobs

_HERE = "/portal/jobs/{job_id}/edit"
_GET, _PATCH = (f"{method} /fine_tuning/jobs/{{job_id}}" for method in ("GET", "PATCH"))
_TEXTS = ("name", "notes")
_PINS = {"true": True, "false": False}


def show(visit: Visit) -> Response:
    """Show the form: as a dialog for the page of the job, or as a page."""
    job = jobs.to_wire(jobs.retrieve(visit.session, visit.param("job_id")))
    body = {"name": job.name, "notes": job.notes}
    return visit.show(
        "job/_edit.html" if visit.is_part else "job/edit.html",
        job=job,
        job_name=job.name or job.suffix or job.id.partition("-")[2][:10],
        in_dialog=visit.is_part,
        marks={name: _mark(_shown(job, name)) for name in _TEXTS},
        forms=same_as.edit(job.id, body, str(visit.request.base_url).rstrip("/"))[1:],
    )


def save(visit: Visit) -> Response:
    """Store the texts that the visitor changed, and the pin."""
    job_id = visit.param("job_id")
    job = jobs.to_wire(jobs.lock(visit.session, job_id))
    given: dict[str, str | bool | None] = {
        name: _plain(visit.field(name)).strip() or None
        for name in _TEXTS
        if _is_changed(visit, job, name)
    }
    if visit.field("pinned") in _PINS:
        given["pinned"] = _PINS[visit.field("pinned")]
    try:
        body = JobPatch.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="use at most 200 characters for the name and 10,000 for the notes",
        ) from None
    if given:
        job_edit.edit(visit.session, job_id, body)
    return visit.go(f"/portal/jobs/{job_id}")


def _is_changed(visit: Visit, job: Job, name: str) -> bool:
    """Return True if the visitor changed this text. Raises BadRequest if another visitor changed
    the text too, after the form was opened. The form shows symbols in place of invisible
    characters; these symbols alone are no change."""
    if name not in visit.form:
        return False
    opened, stored = visit.field(f"{name}_mark"), _mark(_shown(job, name))
    if _mark(_plain(visit.field(name))) in (opened, stored):
        return False
    if opened not in ("", stored):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"another user changed the {name} after you opened this form, so nothing was saved",
            hint="copy your text, open the form again, and add your text there",
        )
    return True


def _shown(job: Job, name: str) -> str:
    """Return a text of the job as a browser sends it back from the form's field."""
    text = _plain(visible(getattr(job, name) or ""))
    return text.replace("\n", "") if name == "name" else text


def _plain(text: str) -> str:
    """Return the text with `\\n` as its only line end, and without NUL."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


PAGES = [
    Page(path=_HERE, show=show, needs=(_GET, _PATCH)),
    Page(path=_HERE, method="POST", show=save, needs=(_PATCH,)),
]
