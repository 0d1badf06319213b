"""Playground: up to four models answer one prompt side by side. The user can mark a better and a
worse answer. The browser stores the marked pairs of answers in OpenAI's preference format, and the
user can download the pairs. The preference pairs cannot be uploaded, because no job can train on
preferences yet.
"""

from __future__ import annotations

from starlette.responses import Response

from tunesmith_server.core.errors import NotFound
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.playground import answers, choices, form, same_as
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.catalogue import served_models

_KEYS = (("Ctrl Enter", "Send"), ("Escape", "Stop"), ("← →", "Token before or after"))
_MAX_TEXT = 1 << 20
_SHOWN_TEMPLATE = 20_000


def show(visit: Visit) -> Response:
    """Show the form with the models, the settings and the prompt from the address."""
    found = choices.read(visit)
    texts = form.DEFAULTS | {
        name: visit.query(name) for name in form.DEFAULTS if name in visit.request.query_params
    }
    chosen = visit.queries("model")[: len(form.MODELS)] or found.first()
    texts |= dict(zip(form.MODELS, (name.replace("\0", "")[:512] for name in chosen), strict=False))
    return _page(visit, texts, found)


def check(visit: Visit) -> Response:
    """Show the requests that the form produces, and write the form's texts into the browser's
    address."""
    texts = {name: visit.field(name).replace("\0", "")[:_MAX_TEXT] for name in form.NAMES}
    texts["user"] = texts[form.ASKED] or texts["user"]
    response = _page(visit, texts, choices.NONE)
    response.headers["hx-replace-url"] = form.address(texts)
    return response


def template(visit: Visit) -> Response:
    """Show the chat template of a model."""
    name = visit.query("model")
    try:
        found = served_models.chat_template(
            visit.session, visit.state.settings, visit.state.storage, name
        )
        problem = "the model has no chat template"
    except NotFound as error:
        found, problem = None, error.message
    return visit.show(
        "playground/_template.html", source=(found or "")[:_SHOWN_TEMPLATE], problem=problem
    )


def _page(visit: Visit, texts: dict[str, str], found: choices.Choices) -> Response:
    is_display = visit.signed_in is not None and visit.signed_in.kind == "display"
    origin = str(visit.request.base_url).rstrip("/")
    return visit.show(
        "playground/_same.html" if visit.is_part else "playground/page.html",
        calls=_CALLS,
        page_keys=_KEYS,
        texts=texts,
        choices=found,
        chosen=form.chosen(texts),
        models=form.MODELS,
        forms=same_as.forms(texts, origin),
        is_on=visit.state.inference.is_on,
        may_chat="chat" in visit.principal.verbs and not is_display,
        project=visit.principal.project_id,
    )


_CALLS = [
    Call(
        path="/v1/models?checkpoints=true", sdk="client.models.list(checkpoints=True)",
        cli="tunesmith models list --checkpoints",
    )
]  # fmt: skip
PAGES = [
    Page(path=form.HERE, show=show, needs=("GET /models",)),
    Page(path=f"{form.HERE}/check", method="POST", show=check, needs=(answers.ROUTE,)),
    Page(
        path=f"{form.HERE}/template",
        show=template,
        needs=("GET /models/{model:path}/tokenizer",),
        is_bulk=True,
    ),
]  # fmt: skip
