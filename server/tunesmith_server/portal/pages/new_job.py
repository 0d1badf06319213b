"""Page that starts a job, with a check of the request before it is sent."""

from __future__ import annotations

import secrets
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from tunesmith_schema import JobCreate, JobFork, RequestProblem
from tunesmith_server.api import job_create as api
from tunesmith_server.api.audited import is_dry_run
from tunesmith_server.core.errors import BadRequest, ServiceError, validation_bodies
from tunesmith_server.portal import devices
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.navigation import NEW_JOB
from tunesmith_server.portal.new_job import choices, fields, request, same_as
from tunesmith_server.portal.visit import Page, Refused, Visit
from tunesmith_server.services.catalogue import lineage
from tunesmith_server.services.training import job_fork, jobs
from tunesmith_server.services.training.job_create import Requester

_CREATE = "POST /fine_tuning/jobs"
_CHECK = f"{NEW_JOB.path}/check?validate_only=true"
_NEEDED = {"model": "base model", "training_file": "training file"}
_MAX_TEXT = 1 << 20
_KEYS = (("Ctrl Enter", "Start the job"),)


def show(visit: Visit) -> Response:
    """Show the form: empty, with a `training_file`, with the fields of the job `from`, or for a
    fork of the job `fork_from`."""
    chosen = visit.query("training_file")[:64]
    texts = {"method": "supervised", fields.TUNING: "lora", "training_file": chosen}
    source = visit.query("from") or _parent_id(visit)
    if source:
        texts |= request.texts_of(job_fork.body_of(jobs.retrieve(visit.session, source)))
    if not texts.get(fields.TUNING):
        texts[fields.TUNING] = "lora"
    texts["step"] = visit.query("step")[:20]
    return _page(visit, texts)


def check(visit: Visit) -> Response:
    """Show the result of the request's validation; nothing is created."""
    return _page(visit, _texts(visit), problems=_problems(visit, _texts(visit)))


def start(visit: Visit) -> Response:
    """Create the job and show its page. The token in the form prevents a double click from creating
    two jobs."""
    if is_dry_run(visit.request):
        return check(visit)
    texts = _texts(visit)
    body, problems = request.body_of(texts)
    if problems:
        raise _refused(visit, texts, _problems(visit, texts))
    try:
        job, _ = api.start(
            visit.session, visit.state, visit.principal, JobCreate.model_validate(body),
            _requester(visit),
        )  # fmt: skip
    except ValidationError:
        raise _refused(visit, texts, _problems(visit, texts)) from None
    except ServiceError as error:
        found = _problems(visit, texts) if isinstance(error, BadRequest) else []
        raise _refused(visit, texts, found or [_problem_of(error)], error.status) from error
    return visit.go(f"/portal/jobs/{job.id}#started")


def fork(visit: Visit) -> Response:
    """Fork the job with the changes of the form, and show the new job."""
    texts = _texts(visit)
    try:
        body = JobFork.model_validate(_fork_body(visit, texts))
        job, _ = job_fork.fork(
            visit.session, visit.state.settings, visit.state.wake_ups, _parent_id(visit), body,
            _requester(visit),
        )  # fmt: skip
    except ValidationError as error:
        found = validation_bodies([dict(item) for item in error.errors(include_url=False)])
        problems = [
            RequestProblem(param=item.param, message=item.message, code=str(item.code))
            for item in found
        ]
        raise _refused(visit, texts, problems) from None
    except ServiceError as error:
        raise _refused(visit, texts, [_problem_of(error)], error.status) from error
    return visit.go(f"/portal/jobs/{job.id}#started")


def _texts(visit: Visit) -> dict[str, str]:
    """Return the texts of the form. A fork cannot change some of the fields; the texts of these
    fields come from the original job."""
    names = (*request.NAMES, *fields.schema())
    texts = {name: visit.field(name).replace("\0", "")[:_MAX_TEXT] for name in names}
    if parent := _parent_id(visit):
        of_parent = request.texts_of(job_fork.body_of(jobs.retrieve(visit.session, parent)))
        texts |= {name: of_parent.get(name, "") for name in request.KEPT_BY_A_FORK}
        texts[fields.TUNING] = texts[fields.TUNING] or "lora"
    return texts


def _parent_id(visit: Visit) -> str:
    return str(visit.request.path_params.get("job_id", "")) or visit.query("fork_from")


def _fork_body(visit: Visit, texts: request.Texts) -> dict[str, Any]:  # Any: JSON
    parent = job_fork.body_of(jobs.retrieve(visit.session, _parent_id(visit)))
    wanted, _ = request.body_of(texts)
    step, suffix = texts.get("step", ""), texts.get("suffix", "").strip()
    body: dict[str, Any] = {"step": fields.parsed_number(step)} if step else {}
    body |= {"suffix": suffix} if suffix and suffix != parent["suffix"] else {}
    if changed := request.changes(parent["recipe"], wanted.get("recipe", {})):
        body["recipe"] = changed
    grader = wanted.get("method", {}).get("reinforcement", {}).get("grader")
    if grader and grader != parent["method"]["reinforcement"]["grader"]:
        body["grader"] = grader
    return body


def _problems(visit: Visit, texts: request.Texts) -> list[RequestProblem]:
    body, problems = request.body_of(texts)
    found = api.find_problems(visit.session, visit.state, visit.principal, body)
    named = {request.field_of(problem.param) for problem in problems}
    return problems + [item for item in found if request.field_of(item.param) not in named]


def _problem_of(error: ServiceError) -> RequestProblem:
    return RequestProblem(
        param=error.param, message=error.message, code=error.code, hint=error.hint
    )


def _requester(visit: Visit) -> Requester:
    token = visit.field("token")[:64]
    return Requester(
        owner=visit.principal.key_id,
        idempotency_key=f"portal-{token}" if token else None,
        may_raise_priority="manage" in visit.principal.verbs,
    )


def _refused(
    visit: Visit, texts: dict[str, str], problems: list[RequestProblem], status: int = 400
) -> Refused:
    """Show the form again, with the problems. The form gets a new token if the old token has
    created a job."""
    kept = texts if status != 409 else texts | {"token": ""}
    return Refused(_page(visit, kept, problems=problems, status=status, was_started=True))


def _page(
    visit: Visit,
    texts: dict[str, str],
    *,
    problems: list[RequestProblem] | None = None,
    status: int = 200,
    was_started: bool = False,
) -> Response:
    parent = _parent_id(visit)
    found = choices.read(visit, texts)
    body, _ = request.body_of(texts)
    blank = [name for name in _NEEDED if not texts.get(name)]
    told = [
        (name, _in_words(problem) if name in blank else problem)
        for problem in problems or []
        for name in [request.field_of(problem.param)]
        if was_started or name not in blank
    ]
    warnings = api.find_warnings(visit.state, body) if problems is not None else []
    origin = str(visit.request.base_url).rstrip("/")
    points = lineage.resume_points(visit.session, jobs.retrieve(visit.session, parent)) if (
        parent
    ) else []  # fmt: skip
    return visit.show(
        "new_job/_check.html" if visit.is_part else "new_job/page.html",
        status=status,
        calls=_CALLS,
        page_keys=_KEYS,
        texts=texts | {"token": texts.get("token") or secrets.token_hex(16)},
        parent=parent,
        points=points,
        step=_step(texts, [point.step for point in points]),
        action=f"{NEW_JOB.path}/fork/{parent}" if parent else NEW_JOB.path,
        check=_CHECK + (f"&fork_from={parent}" if parent else ""),
        max_bytes=visit.state.settings.max_file_bytes,
        query=f"?{visit.request.url.query}" if visit.request.url.query else "",
        choices=found,
        in_sight=fields.in_sight(),
        groups=fields.groups(),
        count=sum(map(len, fields.groups().values())),
        problems=told,
        warnings=[(request.field_of(found.param), found) for found in warnings],
        told={name: problem for name, problem in reversed(told)},
        opens_all=was_started and any(name in fields.folded() for name, _ in told),
        is_checked=problems is not None,
        was_started=was_started,
        blank=blank,
        may_create=_may_create(visit),
        forms=same_as.fork(parent, _fork_body(visit, texts), origin)
        if parent
        else same_as.create(body, origin),
    )


def _in_words(problem: RequestProblem) -> RequestProblem:
    message = f"choose a {_NEEDED[str(problem.param)]}"
    return problem.model_copy(update={"message": message, "hint": None})


def _step(texts: request.Texts, steps: list[int]) -> int | None:
    """Return the step of the newest resume point at or before the wanted step.

    If all resume points are after the wanted step, return the step of the oldest resume point.
    Without a wanted step, return the step of the newest resume point.
    """
    wanted = texts.get("step", "")
    if wanted.isascii() and wanted.isdigit():
        return next((step for step in steps if step <= int(wanted)), steps[-1] if steps else None)
    return steps[0] if steps else None


def _may_create(visit: Visit) -> bool:
    is_display = visit.signed_in is not None and visit.signed_in.kind == "display"
    return "write" in visit.principal.verbs and not is_display


_CALLS = [
    Call(
        path="/v1/fine_tuning/recipe", sdk="client.fine_tuning.recipe_fields()",
        cli="tunesmith jobs recipe-fields",
    ),
    Call(path="/v1/files?purpose=fine-tune", sdk="client.files.list()", cli="tunesmith files list"),
    Call(path="/v1/models", sdk="client.models.list()", cli="tunesmith models list"),
]  # fmt: skip
PAGES = [
    Page(
        path=NEW_JOB.path,
        show=show,
        needs=(
            "GET /fine_tuning/recipe",
            "GET /files",
            "GET /models",
            "GET /fine_tuning/jobs/{job_id}",
            *devices.NEEDS,
        ),
    ),
    Page(path=NEW_JOB.path, method="POST", show=start, needs=(_CREATE,)),
    Page(path=f"{NEW_JOB.path}/check", method="POST", show=check, needs=(_CREATE,)),
    Page(
        path=f"{NEW_JOB.path}/fork/{{job_id}}",
        method="POST",
        show=fork,
        needs=("POST /fine_tuning/jobs/{job_id}/fork",),
    ),
]  # fmt: skip
