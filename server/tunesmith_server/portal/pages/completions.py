"""Page with the completions of a reinforcement job and their rewards."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

from starlette.responses import Response

from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.completions import drawing, grading, reading
from tunesmith_server.portal.completions.view import ENDINGS, CompletionsView, view_of
from tunesmith_server.portal.tables import Cell, as_csv
from tunesmith_server.portal.visit import Page, Visit

_SAMPLES = "GET /fine_tuning/jobs/{job_id}/samples"
_ROWS = "GET /files/{file_id}/rows"
_NEEDS = (_SAMPLES, f"{_SAMPLES}/steps", _ROWS)
_PART_GROUPS = 3
_CSV = ("id", "step", "group", "row", "reward", "advantage", "tokens", "end")
_KEYS = (("/", "Search"), ("[ ]", "Earlier or later step"), ("a", "First prompt across steps"))


def show(visit: Visit) -> Response:
    """Show the completions of a step, of a search, or of a prompt across steps."""
    view = view_of(visit)
    found = reading.read(visit.session, visit.state.storage, view)
    if found.item is not None:
        visit.reads.append((_ROWS, {"file_id": found.job.training_file}))
    response = _page(visit, "completions/page.html", view, found)
    if visit.is_part and found.step:  # the request of the slider names the step that it left
        response.headers["hx-push-url"] = view.address(step=str(found.step.step))
    return response


def part(visit: Visit) -> Response:
    """Show the prompts with the widest range of rewards in the newest step, for the page of the
    job."""
    view = view_of(visit)
    found = reading.read(visit.session, visit.state.storage, view)
    return _page(visit, "completions/_part.html", view, found)


def table(visit: Visit) -> Response:
    """Return a CSV file with the full texts of the completions that the page shows."""
    view = replace(view_of(visit), sample="")
    found = reading.read(visit.session, visit.state.storage, view)
    every = [*found.every, *found.found]
    graders = sorted({name for sample in every for name in sample.scores})
    header = (*_CSV, *(f"score_{name}" for name in graders), "prompt", "completion")
    rows: list[list[Cell]] = [
        [sample.id, sample.step, sample.group, sample.row, sample.reward, sample.advantage,
         sample.completion_tokens, sample.finish_reason,
         *(sample.scores.get(name) for name in graders), sample.prompt, sample.completion]
        for sample in every
    ]  # fmt: skip
    return as_csv(f"{view.job_id}-completions", header, rows)


def _page(
    visit: Visit, template: str, view: CompletionsView, found: reading.Completions
) -> Response:
    job = found.job
    low, high = drawing.ends(found.every)
    method = job.method if isinstance(job.method, dict) else None
    return visit.show(
        template,
        calls=_calls(view, found),
        page_keys=_KEYS,
        view=view,
        found=found,
        job=job,
        job_name=job.name or job.suffix or job.id.partition("-")[2][:10],
        track=drawing.track(found.steps, found.step) if found.step else None,
        track_size=(drawing.WIDTH, drawing.HEIGHT),
        bar_size=(drawing.BAR, drawing.BAR_HEIGHT),
        bars=lambda samples: drawing.bars(samples, low, high),
        gradings=grading.gradings(method, found.opened, found.item) if found.opened else [],
        formula=grading.formula_of(method),
        endings=ENDINGS,
        most_groups=_PART_GROUPS,
    )


def _calls(view: CompletionsView, found: reading.Completions) -> list[Call]:
    filters = view.filters
    pairs: dict[str, str | int | float] = {}
    if view.row is not None:
        pairs = {"row": view.row, "order": "asc"}
    else:
        named = {"reward_lt": filters.reward_lt, "reward_gt": filters.reward_gt,
                 "finish_reason": filters.finish_reason, "q": filters.text}  # fmt: skip
        pairs = {name: value for name, value in named.items() if value is not None}
        if filters.ungraded:
            pairs["ungraded"] = "true"
        if found.step and not view.all_steps:
            pairs |= {"step": found.step.step, "sort": "spread"}
    python = {name: True if value == "true" else value for name, value in pairs.items()}
    arguments = "".join(f", {name}={value!r}" for name, value in python.items())
    path = f"/v1/fine_tuning/jobs/{view.job_id}/samples"
    return [
        Call(
            path=f"{path}?{urlencode(pairs)}" if pairs else path,
            sdk=f"client.fine_tuning.jobs.samples({view.job_id!r}{arguments})",
            cli=f"tunesmith jobs samples {view.job_id}",
        ),
        Call(
            path=f"{path}/steps",
            sdk=f"client.fine_tuning.jobs.sample_steps({view.job_id!r})", cli="",
        ),
    ]  # fmt: skip


PAGES = [
    Page(path="/portal/jobs/{job_id}/completions", show=show, needs=_NEEDS),
    Page(path="/portal/jobs/{job_id}/completions/part", show=part, needs=_NEEDS[:2]),
    Page(path="/portal/jobs/{job_id}/completions.csv", show=table, needs=_NEEDS[:2]),
]
