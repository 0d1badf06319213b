"""Page of a job."""

from __future__ import annotations

import json
import secrets

from starlette.responses import Response

from tunesmith_schema import TERMINAL, EventKind
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.job import charts, hours, orders, reading, recipes, why
from tunesmith_server.portal.job.view import HIDDEN, JobView, view_of
from tunesmith_server.portal.new_job import same_as
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.training import job_fork, jobs

_PATH = "/portal/jobs/{job_id}"
_ROUTE = "GET /fine_tuning/jobs/{job_id}"
NEEDS = (
    _ROUTE,
    *(
        f"{_ROUTE}/{part}"
        for part in (
            "report", "evaluation", "events", "metrics", "checkpoints", "self_check",
            "resume_points", "lineage",
        )
    ),
)  # fmt: skip
"""Routes of the API that return the data of the page."""
_SUPERVISED = (
    ("train_loss", "Training loss"), ("valid_loss", "Validation loss"),
    ("learning_rate", "Learning rate"), ("grad_norm", "Gradient norm"),
)  # fmt: skip
_REINFORCEMENT = (
    ("reward", "Reward"), ("valid_reward", "Held-out reward"), ("kl", "KL"),
    ("truncated_share", "Cut completions"),
)  # fmt: skip
_BOTH = (("tokens_per_second", "Tokens per second"), ("trained_tokens", "Trained tokens"))

_KEYS = (
    ("s", "Smooth the curves"), ("l", "Logarithmic scale"), ("e", "Events"), ("f", "Fork"),
    ("p", "Pause or resume"), ("n", "Edit name, notes and pin"), ("[ ]", "Earlier or later job"),
)  # fmt: skip


def show(visit: Visit) -> Response:
    return _page(visit, "job/page.html")


def parts(visit: Visit) -> Response:
    """Return only the parts of the page that change while a job runs. htmx replaces the old parts
    by these parts."""
    return _page(visit, "job/parts.html")


def _page(visit: Visit, template: str) -> Response:
    view = view_of(visit)
    found = reading.read(visit.session, visit.state, view)
    job = found.job
    is_reinforcement = bool(job.method and job.method.get("type") == "reinforcement")
    validates = bool(job.validation_file or job.recipe.validation_split)
    name = job.name or job.suffix or job.id.partition("-")[2][:10]
    report = found.report
    drawn = [
        charts.drawn(chart, found.curves)
        for chart in charts.charts_of(
            is_reinforcement=is_reinforcement,
            names=found.curves,
            precision=_precision(found),
            validates=validates,
        )
    ]
    recipe = job.recipe.model_dump(mode="json")
    return visit.show(
        template,
        calls=_calls(view),
        page_keys=(*_KEYS, ("r", "Completions")) if is_reinforcement else _KEYS,
        view=view,
        found=found,
        job=job,
        job_name=name,
        method=_method(is_reinforcement, job.recipe.tuning),
        is_reinforcement=is_reinforcement,
        forms=_forms(visit, view),
        is_over=job.state in TERMINAL,
        share=min(1.0, job.step / job.total_steps) if job.total_steps else None,
        orders=_orders(visit, found, name),
        may_write=_may_write(visit),
        under_way=orders.under_way(job),
        token=secrets.token_hex(8),
        figures=[
            (key, label, found.values.get(key))
            for key, label in (*(_REINFORCEMENT if is_reinforcement else _SUPERVISED), *_BOTH)
            if validates or key in found.curves or key not in charts.VALIDATION
        ],
        drawn=drawn,
        reasons=why.reasons(job, report, found.warnings),
        groups=hours.groups(report.phases) if report else [],
        attempts=[*(item.attempt for item in report.earlier_attempts), report.attempt]
        if report
        else [],
        recipe_lines=recipes.lines(recipe, report.choices if report else []),
        recipe_json=json.dumps(recipe, indent=2, ensure_ascii=False),
        kinds=[kind for kind in EventKind if kind not in HIDDEN],
        chart_size=(charts.WIDTH, charts.HEIGHT),
    )


def _precision(found: reading.Parts) -> str:
    choices = found.report.choices if found.report else []
    chosen = next((choice.value for choice in choices if choice.name == "precision"), None)
    return str(chosen or found.job.recipe.precision)


def _forms(visit: Visit, view: JobView) -> list[same_as.Form]:
    body = job_fork.body_of(jobs.retrieve(visit.session, view.job_id))
    return same_as.create(body, str(visit.request.base_url).rstrip("/"))[1:]


def _method(is_reinforcement: bool, tuning: str) -> str:
    if is_reinforcement:
        return "Reinforcement"
    return "Full" if tuning == "full" else "LoRA"


def _may_write(visit: Visit) -> bool:
    return "write" in visit.principal.verbs


def _orders(visit: Visit, found: reading.Parts, name: str) -> list[orders.Order]:
    if not _may_write(visit):
        return []
    return orders.orders(found.job, name, found.points, len(found.checkpoints))


def _calls(view: JobView) -> list[Call]:
    job_id, path = view.job_id, f"/v1/fine_tuning/jobs/{view.job_id}"
    return [
        Call(
            path=path, sdk=f"client.jobs.retrieve({job_id!r})", cli=f"tunesmith jobs get {job_id}"
        ),
        Call(path=f"{path}/report", sdk=f"client.jobs.report({job_id!r})", cli=""),
        Call(path=f"{path}/events", sdk=f"client.jobs.list_events({job_id!r})", cli=""),
        Call(path=f"{path}/metrics?format=columns", sdk=f"client.jobs.curves({job_id!r})", cli=""),
        Call(path=f"{path}/self_check", sdk=f"client.jobs.self_check({job_id!r})", cli=""),
        Call(path=f"{path}/lineage", sdk=f"client.jobs.lineage({job_id!r})", cli=""),
    ]


PAGES = [
    Page(path=_PATH, show=show, needs=NEEDS),
    Page(path=f"{_PATH}/parts", show=parts, needs=NEEDS),
]
