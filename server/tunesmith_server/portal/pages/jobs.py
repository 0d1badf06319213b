"""List of jobs: which runs are there, and how do they go?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_schema import TERMINAL, JobState, MethodName
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services import jobs
from tunesmith_server.services.job_filters import JobFilters

_ROWS = 50
"""Jobs of one page of the list."""
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
"""Choices of the state filter: name in the address, label, and states."""
_KEYS = (("/", "Search"), ("j k", "Next or former job"), ("o", "Open the job"))
_COMPARE_KEYS = (("x", "Pick the job"), ("v", "Compare picked jobs"))
METHODS = {"supervised": "Supervised", "reinforcement": "Reinforcement"}


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job as one row of the table."""

    id: str
    name: str
    """Name or suffix; empty if the job has none."""
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
    """Time since the start, up to the end; None before the start."""
    metric: str
    """Name of the main metric."""
    last: float | None
    """Last value of the main metric."""
    curve: Sequence[float | None]
    """Values of the main metric, equally spaced."""
    waits: str | None
    """Why the job waits, as a sentence."""

    @property
    def short_id(self) -> str:
        return self.id.partition("-")[2][:8]

    @property
    def title(self) -> str:
        return self.name or self.short_id

    @property
    def share(self) -> float | None:
        """Part of the steps that is done, from 0 to 1."""
        return self.step / self.total_steps if self.total_steps else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Filters as the address has them."""

    text: str
    state: str
    method: str
    model: str
    after: str

    @property
    def is_filtered(self) -> bool:
        return bool(self.text or self.state or self.method or self.model)

    def address(self, **changes: str) -> str:
        """Return the address of the list with these filters changed."""
        values = {
            "q": self.text, "state": self.state, "method": self.method, "model": self.model,
            "after": "", **changes,
        }  # fmt: skip
        query = urlencode({name: value for name, value in values.items() if value})
        return f"/portal/jobs?{query}" if query else "/portal/jobs"

    def filters(self) -> JobFilters:
        method: MethodName | None = None
        if self.method in get_args(MethodName):
            method = self.method  # type: ignore[assignment]  # checked by the line above
        return JobFilters(
            states=STATE_GROUPS[self.state][1] if self.state in STATE_GROUPS else [],
            method=method,
            model=self.model or None,
            text=self.text or None,
        )


def show(visit: Visit) -> Response:
    """Show the list, or only its table if a filter changed."""
    choice = Choice(
        text=visit.query("q").strip()[:_MAX_TEXT],
        state=visit.query("state"),
        method=visit.query("method"),
        model=visit.query("model")[:512],
        after=visit.query("after"),
    )
    page = jobs.list_jobs(
        visit.session, after=choice.after or None, limit=_ROWS, order="desc",
        filters=choice.filters(), with_curve=True,
    )  # fmt: skip
    lines = [line_of(item) for item in from_json(page.content())["data"]]
    compares = "/portal/compare" in visit.request.app.state.portal_paths
    next_page = choice.address(after=lines[-1].id) if page.has_more else ""
    return visit.show(
        "jobs.html",
        lines=lines,
        choice=choice,
        next_page=next_page,
        state_groups={name: label for name, (label, _) in STATE_GROUPS.items()},
        methods=METHODS,
        calls=[_call(choice)],
        page_keys=_KEYS + (_COMPARE_KEYS if compares else ()),
    )


def line_of(item: Mapping[str, Any], now: float | None = None) -> JobLine:
    """Return a row of the table from a job as the API lists it."""
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
    )


def _method_of(item: Mapping[str, Any], is_reinforcement: bool) -> str:
    if is_reinforcement:
        return "Reinforcement"
    return "Full" if (item["recipe"] or {}).get("tuning") == "full" else "LoRA"


def _owner_of(owner: Any) -> str | None:  # Any: JSON
    return owner.get("name") if isinstance(owner, dict) else owner


def _curve_of(item: Mapping[str, Any]) -> Sequence[float | None]:
    """Return the curve of the job's main metric, if the list has it."""
    curve = item.get("curve")
    return curve.get("values", []) if isinstance(curve, dict) else []


def _call(choice: Choice) -> Call:
    filters = choice.filters()
    pairs = [("state", str(state)) for state in filters.states]
    pairs += [(name, value) for name, value in (
        ("method", filters.method), ("model", filters.model), ("text", filters.text)
    ) if value]  # fmt: skip
    query = f"?{urlencode(pairs)}" if pairs else ""
    arguments = [f"state={[str(state) for state in filters.states]!r}"] if filters.states else []
    arguments += [f"{name}={value!r}" for name, value in pairs if name != "state"]
    options = [f"--{name} {value!r}" for name, value in pairs]
    return Call(
        path=f"/v1/fine_tuning/jobs{query}",
        sdk=f"client.jobs.list({', '.join(arguments)})",
        cli=" ".join(["tunesmith jobs list", *options]),
    )


PAGES = [Page(path="/portal/jobs", show=show, needs=("GET /fine_tuning/jobs",))]
