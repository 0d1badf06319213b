"""Page of a model: its origin, its files, and the projects that may use it."""

from __future__ import annotations

from urllib.parse import quote

from pydantic import ValidationError
from starlette.responses import Response

from tunesmith_schema import CheckpointPermissionCreate
from tunesmith_server.api.files import send_or_redirect
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.identity import sharing
from tunesmith_server.portal import security
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.job import charts
from tunesmith_server.portal.model import reading
from tunesmith_server.portal.visit import Page, Refused, Visit
from tunesmith_server.services.catalogue import adapters, verifications

from .models import ModelLine

_PATH = "/portal/models/{model:path}"
_ROUTE = "GET /models/{model:path}"
_SHARE = "/fine_tuning/checkpoints/{model}/permissions"
_JOB = "GET /fine_tuning/jobs/{job_id}"
_NEEDS = (
    _ROUTE, f"{_ROUTE}/uses", "GET /adapters/{adapter_id}", _JOB, f"{_JOB}/lineage",
    f"{_JOB}/checkpoints", f"{_JOB}/metrics", f"{_JOB}/self_check",
)  # fmt: skip


def show(visit: Visit) -> Response:
    return _page(visit)


def _page(visit: Visit, *, problem: str = "", status: int = 200) -> Response:
    name = visit.param("model")
    is_display = visit.signed_in is not None and visit.signed_in.kind == "display"
    verbs = frozenset() if is_display else visit.principal.verbs
    found = reading.read(visit, name, may_share="manage" in verbs)
    return visit.show(
        "models/page.html",
        status=status,
        found=found,
        model=found.model,
        line=ModelLine(model=found.model),
        path=visit.request.url.path,
        here=_here(name),
        compare=_comparison(found),
        may_share="manage" in verbs,
        may_delete="write" in verbs,
        chart_size=(charts.WIDTH, charts.HEIGHT),
        problem=problem,
        calls=_calls(found),
        page_keys=(("d", "Download"),) if found.adapter else (),
    )


def verdict(visit: Visit) -> Response:
    """Show the model's verification.json, which has the result of the check of the model's
    files."""
    row = adapters.retrieve(visit.session, visit.param("adapter_id"))
    return visit.show(
        "models/_verdict.html", verdict=verifications.retrieve(visit.state.storage, row)
    )


def download_file(visit: Visit) -> Response:
    """Return one file of a model."""
    row = adapters.retrieve(visit.session, visit.param("adapter_id"))
    file = adapters.find_file(row, visit.param("name"))
    response = send_or_redirect(visit.state, file.sha256, file.bytes, file.name, None)
    for name, value in security.HEADERS.items():
        response.headers[name] = value
    return response


def share(visit: Visit) -> Response:
    """Let a project use the model."""
    name = visit.param("model")
    try:
        body = CheckpointPermissionCreate(project_ids=[visit.field("project").strip()])
        sharing.share(visit.session, name, body)
    except ValidationError:
        problem = "A project's id begins with proj-."
        raise Refused(_page(visit, problem=problem, status=400)) from None
    except BadRequest as error:
        problem = f"{error.message}; {error.hint}"
        raise Refused(_page(visit, problem=problem, status=400)) from error
    return visit.go(f"{_here(name)}#sharing")


def withdraw(visit: Visit) -> Response:
    name = visit.param("model")
    sharing.withdraw(visit.session, name, visit.param("permission_id"))
    return visit.go(f"{_here(name)}#sharing")


def delete(visit: Visit) -> Response:
    """Delete the model and show the list. The inference process unloads the model within a
    minute."""
    adapters.delete_model(visit.session, visit.param("model"))
    return visit.go("/portal/models")


def _here(name: str) -> str:
    return f"/portal/models/{quote(name)}"


def _comparison(found: reading.ModelParts) -> str:
    if found.origin is None:
        return ""
    related = found.origin.lineage.forked_from or found.origin.lineage.retry_of
    if related is None or related.state == "deleted":
        return ""
    return f"/portal/compare?jobs={related.id},{found.origin.job.id}"


def _calls(found: reading.ModelParts) -> list[Call]:
    name, adapter = found.model.id, found.adapter
    path = f"/v1/models/{quote(name)}"
    calls = [
        Call(
            path=path, sdk=f"client.models.retrieve({name!r})", cli=f"tunesmith models show {name}"
        ),
        Call(
            path=f"{path}/uses", sdk=f"client.models.uses({name!r})",
            cli=f"tunesmith models uses {name}",
        ),
    ]  # fmt: skip
    if adapter:
        files, one = f"/v1/adapters/{adapter.id}", repr(adapter.id)
        calls += [
            Call(
                path=f"{files}/content", sdk=f"client.adapters.download({one}, 'my-model')",
                cli=f"tunesmith adapters download {adapter.id} my-model",
            ),
            Call(
                path=f"{files}/verification", sdk=f"client.adapters.verification({one})",
                cli=f"tunesmith adapters verification {adapter.id}",
            ),
        ]  # fmt: skip
    return calls


_FILES = "/portal/models/files/{adapter_id}"
PAGES = [
    Page(
        path=f"{_FILES}/verdict", show=verdict,
        needs=("GET /adapters/{adapter_id}/verification",), is_bulk=True,
    ),
    Page(
        path=f"{_FILES}/{{name}}", show=download_file,
        needs=("GET /adapters/{adapter_id}/content/{name}",), is_bulk=True,
    ),
    Page(path=f"{_PATH}/share", method="POST", show=share, needs=(f"POST {_SHARE}",)),
    Page(
        path=f"{_PATH}/share/{{permission_id}}/withdraw", method="POST", show=withdraw,
        needs=(f"DELETE {_SHARE}/{{permission_id}}",),
    ),
    Page(
        path=f"{_PATH}/delete", method="POST", show=delete, needs=("DELETE /models/{model:path}",)
    ),
    Page(path=_PATH, show=show, needs=_NEEDS),
]  # fmt: skip
