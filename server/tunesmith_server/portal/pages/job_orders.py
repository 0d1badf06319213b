"""Commands to a job: pause, resume, stop, cancel, retry and fork."""

from __future__ import annotations

from pydantic import ValidationError
from starlette.responses import Response

from tunesmith_schema import ErrorCode, JobFork
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.portal.job import recipes
from tunesmith_server.portal.visit import Page, PageFunction, Visit
from tunesmith_server.services.training import job_control, job_fork
from tunesmith_server.services.training.job_create import Requester


def pause(visit: Visit) -> Response:
    job_control.pause(visit.session, visit.param("job_id"))
    return _back(visit)


def resume(visit: Visit) -> Response:
    job_control.resume(visit.session, visit.state.wake_ups, visit.param("job_id"))
    return _back(visit)


def stop(visit: Visit) -> Response:
    job_control.stop(visit.session, visit.state.wake_ups, visit.param("job_id"))
    return _back(visit)


def cancel(visit: Visit) -> Response:
    job_control.cancel(visit.session, visit.param("job_id"))
    return _back(visit)


def retry(visit: Visit) -> Response:
    """Retry the job and show the new job. The token in the form prevents a double click from
    creating two jobs."""
    state = visit.state
    job, _ = job_fork.retry(
        visit.session, state.settings, state.wake_ups, visit.param("job_id"), _requester(visit)
    )
    return visit.go(f"/portal/jobs/{job.id}")


def fork(visit: Visit) -> Response:
    """Fork the job. If the form has a recipe field, the fork changes this field."""
    state, field = visit.state, visit.field("field")
    change = recipes.changes(field, visit.field("value")) if field else {}
    try:
        body = JobFork.model_validate(
            {
                "step": visit.field("step") or None,
                "suffix": visit.field("suffix").strip() or None,
                "recipe": change,
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:500],
            hint="choose a step of the list, and a suffix of 1 to 64 characters",
        ) from None
    job, _ = job_fork.fork(
        visit.session, state.settings, state.wake_ups, visit.param("job_id"), body,
        _requester(visit),
    )  # fmt: skip
    return visit.go(f"/portal/jobs/{job.id}")


def _requester(visit: Visit) -> Requester:
    token = visit.field("token")[:64]
    key = f"portal-{token}" if token else None
    return Requester(owner=visit.principal.key_id, idempotency_key=key)


def _back(visit: Visit) -> Response:
    return visit.go(f"/portal/jobs/{visit.param('job_id')}")


def _order(verb: str, show: PageFunction) -> Page:
    return Page(
        path=f"/portal/jobs/{{job_id}}/{verb}",
        method="POST",
        show=show,
        needs=(f"POST /fine_tuning/jobs/{{job_id}}/{verb}",),
    )


PAGES = [
    _order("pause", pause),
    _order("resume", resume),
    _order("stop", stop),
    _order("cancel", cancel),
    _order("retry", retry),
    _order("fork", fork),
]
