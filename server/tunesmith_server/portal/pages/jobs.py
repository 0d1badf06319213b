"""List of jobs, with their state, health and main metric."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_schema import TERMINAL, JobState, MethodName
from tunesmith_server.core.errors import NotFound
from tunesmith_server.portal import cookies, security
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.training import jobs
from tunesmith_server.services.training.job_filters import JobFilters

_ROWS = 50
_MAX_TEXT = 200
STATE_GROUPS: dict[str, tuple[str, list[JobState]]] = {
    "active": ("Active", [state for state in JobState if state not in TERMINAL]),
    "running": ("Running", [JobState.RUNNING, JobState.PAUSING]),
    "waiting": ("Waiting", [JobState.VALIDATING_FILES, JobState.QUEUED]),
    "paused": ("Paused", [JobState.PAUSED]),
    "succeeded": ("Succeeded", [JobState.SUCCEEDED]),
    "failed": ("Failed", [JobState.FAILED]),
    "cancelled": ("Cancelled", [JobState.CANCELLED]),
}
"""Choices of the state filter. Each filter has a name in the address, a label, and job states."""
COLUMNS = {
    "curve": "Curve", "method": "Method", "model": "Base model", "owner": "Owner",
    "took": "Took", "when": "Created",
}  # fmt: skip
"""Titles of the columns that can be hidden; the keys are the CSS classes of their cells."""
_MOST_PICKS = 8
_CSV_ROWS = 1000
_CSV = (
    "id", "name", "suffix", "state", "method", "model", "fine_tuned_model", "owner", "step",
    "total_steps", "created_at", "started_at", "finished_at", "train_loss", "valid_loss", "reward",
)  # fmt: skip
_KEYS = (("/", "Search"), ("j k", "Next or previous job"), ("o", "Open the job"))
_COMPARE_KEYS = (("x", "Pick the job"), ("v", "Compare picked jobs"))
METHODS = {"supervised": "Supervised", "reinforcement": "Reinforcement"}


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job as one row of the table."""

    id: str
    name: str
    """Name or suffix of the job; empty if the job has neither."""
    state: str
    phase: str | None
    step: int
    total_steps: int | None
    method: str
    model: str
    owner: str | None
    created_at: int
    finished_at: int | None
    seconds: float | None
    """Seconds from the job's start to its end, or until now; None before the start."""
    metric: str
    """Name of the main metric."""
    last: float | None
    """Last value of the main metric."""
    curve: Sequence[float | None]
    """Values of the main metric at equally spaced steps."""
    waits: str | None
    """Reason why the job waits, as a sentence; None if it does not wait."""
    result: str | None
    """Name of the tuned model; None if there is none, or if it was deleted."""
    pinned: bool
    """True if the team has pinned the job."""

    @property
    def short_id(self) -> str:
        return self.id.partition("-")[2][:8]

    @property
    def title(self) -> str:
        return self.name or self.short_id

    @property
    def share(self) -> float | None:
        """Return the share of completed steps, from 0 to 1."""
        return self.step / self.total_steps if self.total_steps else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Filters of the list, from the address."""

    text: str
    state: str
    method: str
    model: str
    owner: str
    label: str
    """Pair of a job's metadata, as `KEY=VALUE`."""
    order: str
    """Order of the list: `asc` for the oldest jobs first."""
    after: str
    picks: tuple[str, ...] = ()
    """Ids of the jobs that the visitor has selected for a comparison."""

    @property
    def is_filtered(self) -> bool:
        return bool(self.text or self.state or self.method or self.has_more_filters)

    @property
    def has_more_filters(self) -> bool:
        return bool(self.model or self.owner or self.label)

    def address(self, part: str = "", **changes: str) -> str:
        """Return the address of the list with these filters changed. `part`: text appended to the
        path of the page."""
        values = {
            "q": self.text, "state": self.state, "method": self.method, "model": self.model,
            "owner": self.owner, "label": self.label, "order": self.order, "after": "",
            "pick": ",".join(self.picks), **changes,
        }  # fmt: skip
        query = urlencode({name: value for name, value in values.items() if value}, safe=",")
        return f"/portal/jobs{part}?{query}" if query else f"/portal/jobs{part}"

    def filters(self) -> JobFilters:
        method: MethodName | None = None
        if self.method in get_args(MethodName):
            method = self.method  # type: ignore[assignment]  # checked by the line above
        return JobFilters(
            states=STATE_GROUPS[self.state][1] if self.state in STATE_GROUPS else [],
            method=method,
            model=self.model or None,
            text=self.text or None,
            owner=self.owner or None,
            metadata=self.metadata,
        )

    @property
    def metadata(self) -> dict[str, str]:
        key, sign, value = self.label.partition("=")
        return {key.strip(): value.strip()} if sign and key.strip() else {}


def show(visit: Visit) -> Response:
    """Show the list; show only its table if a filter changed."""
    choice = _choice_of(visit)
    page = jobs.list_jobs(
        visit.session, after=choice.after or None, limit=_ROWS,
        order="asc" if choice.order else "desc", filters=choice.filters(), with_curve=True,
    )  # fmt: skip
    lines = [line_of(item) for item in from_json(page.content())["data"]]
    compares = "/portal/compare" in visit.request.app.state.portal_paths
    next_page = choice.address(after=lines[-1].id) if page.has_more else ""
    return visit.show(
        "jobs.html",
        lines=lines,
        picks=choice.picks,
        owners=sorted({line.owner for line in lines if line.owner}),
        choice=choice,
        next_page=next_page,
        picked_elsewhere=_picked(visit, choice, {line.id for line in lines}),
        columns=COLUMNS,
        hidden=cookies.hidden_columns(visit.request),
        state_groups={name: label for name, (label, _) in STATE_GROUPS.items()},
        methods=METHODS,
        calls=[_call(choice)],
        page_keys=_KEYS + (_COMPARE_KEYS if compares else ()),
    )


def as_csv(visit: Visit) -> Response:
    """Return the jobs that pass the filters, at most 1,000, as a table."""
    choice = _choice_of(visit)
    content = io.StringIO()
    writer = csv.DictWriter(content, _CSV, extrasaction="ignore", lineterminator="\r\n")
    writer.writeheader()
    after, left = None, _CSV_ROWS
    while left > 0:
        page = jobs.list_jobs(
            visit.session, after=after, limit=min(left, 100),
            order="asc" if choice.order else "desc", filters=choice.filters(),
        )  # fmt: skip
        items = from_json(page.content())["data"]
        for item in items:
            shown = line_of(item)
            row = {**item, **(item.get("last_metrics") or {})}
            row |= {"method": shown.method, "owner": shown.owner}
            writer.writerow({name: _cell(row.get(name)) for name in _CSV})
        left -= len(items)
        if not page.has_more or not items:
            break
        after = items[-1]["id"]
    headers = {**security.HEADERS, "content-disposition": 'attachment; filename="jobs.csv"'}
    return Response(content.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: Any) -> Any:  # Any: JSON
    """Return a value for a CSV file; a text that a spreadsheet would run as a formula is quoted."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def choose_columns(visit: Visit) -> Response:
    """Store the hidden columns in a cookie, and show the list again."""
    shown = {str(name) for name in visit.form.getlist("column")}
    response = visit.go(security.own_path(visit.field("to")))
    cookies.set_hidden_columns(
        visit.request, response, [name for name in COLUMNS if name not in shown]
    )
    return response


def _choice_of(visit: Visit) -> Choice:
    picks = [name[:100] for text in visit.queries("pick") for name in text.split(",") if name]
    return Choice(
        text=visit.query("q").strip()[:_MAX_TEXT],
        state=visit.query("state"),
        method=visit.query("method"),
        model=visit.query("model").strip()[:512],
        owner=visit.query("owner").strip()[:_MAX_TEXT],
        label=visit.query("label").strip()[:_MAX_TEXT],
        order="asc" if visit.query("order") == "asc" else "",
        after=visit.query("after"),
        picks=tuple(dict.fromkeys(name.replace("\0", "") for name in picks))[:_MOST_PICKS],
    )


def _picked(visit: Visit, choice: Choice, shown: set[str]) -> list[tuple[str, str]]:
    found = []
    for name in choice.picks:
        with suppress(NotFound):
            if name not in shown:
                row = jobs.retrieve(visit.session, name)
                found.append((row.id, row.name or row.suffix or row.id.partition("-")[2][:8]))
    return found


def line_of(item: Mapping[str, Any], now: float | None = None) -> JobLine:
    """Convert a job from the format of the API's lists to a row of the table."""
    is_reinforcement = (item["method"] or {}).get("type") == "reinforcement"
    metric = "reward" if is_reinforcement else "train_loss"
    started = item.get("started_at")
    end = item["finished_at"] or (time.time() if now is None else now)
    waiting = item.get("waiting_because")
    return JobLine(
        id=item["id"],
        name=(item.get("name") or item["suffix"] or "").strip(),
        state=item["state"],
        phase=item["phase"],
        step=item["step"],
        total_steps=item["total_steps"],
        method=_method_of(item, is_reinforcement),
        model=item["model"],
        owner=_owner_of(item.get("owner")),
        created_at=item["created_at"],
        finished_at=item["finished_at"],
        seconds=end - started if started else None,
        metric=metric,
        last=(item.get("last_metrics") or {}).get(metric),
        curve=_curve_of(item),
        waits=waiting["message"] if isinstance(waiting, dict) else None,
        result=item.get("fine_tuned_model") if item.get("adapter_id") else None,
        pinned=bool(item.get("pinned")),
    )


def _method_of(item: Mapping[str, Any], is_reinforcement: bool) -> str:
    if is_reinforcement:
        return "Reinforcement"
    return "Full" if (item["recipe"] or {}).get("tuning") == "full" else "LoRA"


def _owner_of(owner: Any) -> str | None:  # Any: JSON
    return owner.get("name") if isinstance(owner, dict) else owner


def _curve_of(item: Mapping[str, Any]) -> Sequence[float | None]:
    curve = item.get("curve")
    return curve.get("values", []) if isinstance(curve, dict) else []


def _call(choice: Choice) -> Call:
    filters = choice.filters()
    pairs = [("state", str(state)) for state in filters.states]
    pairs += [(name, value) for name, value in (
        ("method", filters.method), ("model", filters.model), ("text", filters.text),
        ("owner", filters.owner), ("order", choice.order),
    ) if value]  # fmt: skip
    pairs += [(f"metadata[{key}]", value) for key, value in filters.metadata.items()]
    query = f"?{urlencode(pairs)}" if pairs else ""
    arguments = [f"state={[str(state) for state in filters.states]!r}"] if filters.states else []
    plain = [pair for pair in pairs if pair[0] != "state" and "[" not in pair[0]]
    arguments += [f"{name}={value!r}" for name, value in plain]
    arguments += [f"metadata={dict(filters.metadata)!r}"] if filters.metadata else []
    options = [
        f"--{name} {value!r}" for name, value in pairs if "[" not in name and name != "order"
    ]
    options += [f"--metadata {key}={value!r}" for key, value in filters.metadata.items()]
    return Call(
        path=f"/v1/fine_tuning/jobs{query}",
        sdk=f"client.jobs.list({', '.join(arguments)})",
        cli=" ".join(["tunesmith jobs list", *options]),
    )


_LIST = ("GET /fine_tuning/jobs",)
PAGES = [
    Page(path="/portal/jobs", show=show, needs=_LIST),
    Page(path="/portal/jobs.csv", show=as_csv, needs=_LIST),
    Page(path="/portal/columns", method="POST", show=choose_columns, is_public=True),
]
