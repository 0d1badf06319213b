"""Output of jobs: events, metrics, samples, reports, checkpoints."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Literal

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import (
    Checkpoint,
    Event,
    JobEvaluation,
    JobReport,
    MetricPoint,
    Sample,
    SampleStep,
)

from .files import Order
from .follow import follow


class JobOutput:
    """Methods of `client.fine_tuning.jobs` that return the output of jobs."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.checkpoints = Checkpoints(http)

    def list_events(
        self,
        job_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: Order | None = None,
        kind: str | Sequence[str] | None = None,
        level: str | Sequence[str] | None = None,
        q: str | None = None,
    ) -> Page[Event]:
        """List events, newest first. `kind` and `level` select events by kind and level; `q`
        selects events by a part of their message."""
        path = path_of("fine_tuning", "jobs", job_id, "events")

        filters = {
            "kind": [kind] if isinstance(kind, str) else kind,
            "level": [level] if isinstance(level, str) else level,
        }

        def fetch(cursor: str | None) -> wire.Page[Event]:
            params = {"limit": limit, "after": cursor, "order": order, "q": q, **filters}
            return self._http.get(wire.Page[Event], path, params)

        return first_page(fetch, after)

    def stream(self, job_id: str, after_seq: int | None = None) -> Generator[Event, None, None]:
        """Yield every event after `after_seq`, past and future, until the job ends."""
        for item in follow(self._http, job_id, after_seq=after_seq):
            if isinstance(item, Event):
                yield item

    def metrics(self, job_id: str) -> list[MetricPoint]:
        """Return all metrics of the job, lowest step first."""
        path = path_of("fine_tuning", "jobs", job_id, "metrics")

        def fetch(cursor: str | None) -> wire.Page[MetricPoint]:
            params = {"after": cursor, "order": "asc", "limit": 1000}
            return self._http.get(wire.Page[MetricPoint], path, params)

        return [*first_page(fetch, None)]

    def curves(
        self,
        job_id: str,
        *,
        names: Sequence[str] | None = None,
        points: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> wire.MetricColumns:
        """Return the curves of the metrics `names` (default: all) from step `first` to `last`. A
        curve has at most `points` values (default 2000), which include all extreme values."""
        params = {
            "format": "columns",
            "names": ",".join(names) if names else None,
            "points": points,
            "from": first,
            "to": last,
        }
        path = path_of("fine_tuning", "jobs", job_id, "metrics")
        return self._http.get(wire.MetricColumns, path, params)

    def self_check(self, job_id: str, *, attempt: int | None = None) -> wire.SelfCheck:
        """Return the results of the checks that ran before the first step of an attempt (default:
        the newest attempt).

        Raises NotFoundError before the checks have run.
        """
        path = path_of("fine_tuning", "jobs", job_id, "self_check")
        return self._http.get(wire.SelfCheck, path, {"attempt": attempt})

    def resume_points(self, job_id: str) -> list[wire.StoredResumePoint]:
        """Return the resume points that a fork can start from, newest first."""
        path = path_of("fine_tuning", "jobs", job_id, "resume_points")
        return self._http.get(wire.Page[wire.StoredResumePoint], path).data

    def lineage(self, job_id: str) -> wire.JobLineage:
        """Return base model, data, origin, forks, retries and results of the job."""
        path = path_of("fine_tuning", "jobs", job_id, "lineage")
        return self._http.get(wire.JobLineage, path)

    def files(self, job_id: str) -> list[wire.JobFile]:
        """Return the files of the job, with the API path of each file's content."""
        path = path_of("fine_tuning", "jobs", job_id, "files")
        return self._http.get(wire.Page[wire.JobFile], path).data

    def file_content(self, job_id: str, name: str) -> str:
        """Return `recipe.json`, `environment.json` or `log.txt`."""
        path = path_of("fine_tuning", "jobs", job_id, "files", name)
        return self._http.send("GET", path).text

    def samples(
        self,
        job_id: str,
        *,
        step: int | None = None,
        row: int | None = None,
        group: int | None = None,
        reward_lt: float | None = None,
        reward_gt: float | None = None,
        ungraded: bool | None = None,
        finish_reason: Literal["stop", "length"] | None = None,
        q: str | None = None,
        sort: Literal["spread"] | None = None,
        after: str | None = None,
        limit: int | None = None,
        order: Order | None = None,
    ) -> Page[Sample]:
        """List a reinforcement job's completions and scores, newest first. `step` selects one step,
        `row` selects one prompt in all steps, and `q` selects samples by a part of their text.
        `sort="spread"` orders the prompts of a step by the range of their rewards, widest first. A
        page has at most 100 samples; iterating over a page also fetches the following pages. A
        filtered page may be empty although `has_more` is true."""
        path = path_of("fine_tuning", "jobs", job_id, "samples")
        filters: dict[str, str | int | float | None] = {
            "step": step,
            "row": row,
            "group": group,
            "reward_lt": reward_lt,
            "reward_gt": reward_gt,
            "ungraded": None if ungraded is None else str(ungraded).lower(),
            "finish_reason": finish_reason,
            "q": q,
            "sort": sort,
        }

        def fetch(cursor: str | None) -> wire.Page[Sample]:
            params = {**filters, "limit": limit, "after": cursor, "order": order}
            return self._http.get(wire.Page[Sample], path, params)

        return first_page(fetch, after)

    def sample_steps(self, job_id: str, *, after: str | None = None) -> Page[SampleStep]:
        """List the steps of a reinforcement job that have samples, lowest step first."""
        path = path_of("fine_tuning", "jobs", job_id, "samples", "steps")

        def fetch(cursor: str | None) -> wire.Page[SampleStep]:
            return self._http.get(wire.Page[SampleStep], path, {"after": cursor})

        return first_page(fetch, after)

    def report(self, job_id: str, *, attempt: int | None = None) -> JobReport:
        """Return the report on the time, memory and bottleneck of an attempt (default: the newest
        attempt).

        Raises NotFoundError (`code` is `no_report`) before the attempt has written a report.
        """
        path = path_of("fine_tuning", "jobs", job_id, "report")
        return self._http.get(JobReport, path, {"attempt": attempt})

    def evaluation(self, job_id: str) -> JobEvaluation:
        """Return the evaluation of the job's result: the base model compared with the tuned model.
        Raises NotFoundError (`code` is `no_evaluation`) before the end of the job, with
        `recipe.evaluate: false`, and after a failed evaluation. For a failed evaluation, the
        error's message has the reason.
        """
        path = path_of("fine_tuning", "jobs", job_id, "evaluation")
        return self._http.get(JobEvaluation, path)


class Checkpoints:
    """`client.fine_tuning.jobs.checkpoints`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(
        self, job_id: str, *, after: str | None = None, limit: int | None = None
    ) -> Page[Checkpoint]:
        path = path_of("fine_tuning", "jobs", job_id, "checkpoints")

        def fetch(cursor: str | None) -> wire.Page[Checkpoint]:
            params = {"limit": limit, "after": cursor}
            return self._http.get(wire.Page[Checkpoint], path, params)

        return first_page(fetch, after)
