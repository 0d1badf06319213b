"""Tables of compared jobs: results with differences, settings that differ, evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith_schema import EvaluationSummary
from tunesmith_schema.comparison import ComparedData, ComparedJob, JobComparison
from tunesmith_server.portal import view

METRICS = {
    "train_loss": "Training loss", "valid_loss": "Validation loss", "reward": "Reward",
    "valid_reward": "Held-out reward",
}  # fmt: skip
_DATA = ("training_file", "validation_file")
_MAX_TEXT = 400


@dataclass(frozen=True, kw_only=True)
class Result:
    """Last and best value of one metric of one job."""

    last: float | None
    best: float | None
    best_step: int | None
    difference: float | None
    """Job's best value minus the best value of all jobs; None if one of the two values is
    unknown."""

    @property
    def is_best(self) -> bool:
        return self.difference == 0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Setting in which the jobs differ."""

    name: str
    texts: list[str]
    is_automatic: bool = False
    """True if the values were chosen for `auto`."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Evaluation of the model that one of the compared jobs trained."""

    number: int
    """Number of the job on the page, from 1."""
    summary: EvaluationSummary

    @property
    def difference(self) -> float | None:
        if self.summary.base is None or self.summary.tuned is None:
            return None
        return self.summary.tuned - self.summary.base


def name_of(job: ComparedJob) -> str:
    return (job.name or job.suffix or "").strip() or job.id.partition("-")[2][:10]


def results(found: JobComparison) -> dict[str, list[Result]]:
    """Return the results of each metric that a job has, in the order of the jobs. If all jobs have
    rewards, losses are left out, because the loss of a reinforcement job does not show quality."""
    shown = {}
    has_rewards = all("reward" in job.results for job in found.jobs)
    for metric in METRICS:
        if has_rewards and metric.endswith("loss"):
            continue
        known = [job.results[metric].best for job in found.jobs if metric in job.results]
        values = [value for value in known if value is not None]
        if known:
            pick = max if metric.endswith("reward") else min
            first = pick(values, default=None)
            shown[metric] = [_result(job, metric, first) for job in found.jobs]
    return shown


def _result(job: ComparedJob, metric: str, first: float | None) -> Result:
    own = job.results.get(metric)
    best = own.best if own else None
    is_known = best is not None and first is not None
    return Result(
        last=own.last if own else None,
        best=best,
        best_step=own.best_step if own else None,
        difference=best - first if is_known and best is not None and first is not None else None,
    )


def settings(found: JobComparison) -> list[Setting]:
    """Return the settings that differ: data, recipe, hyperparameters, devices, hosts, versions,
    and values chosen for `auto`."""
    rows = []
    for name, values in found.settings.items():
        if name in _DATA:
            data = [getattr(job, name) for job in found.jobs]
            texts = [_data(item) for item in data]
            if len({item.sha256 if item else None for item in data}) == 1 and data[0]:
                texts = [f"{text} (equal contents)" for text in texts]
        else:
            texts = [_text(value) for value in values]
        rows.append(Setting(name=name, texts=texts))
    rows += [
        Setting(name=name, texts=[_text(value) for value in values])
        for name, values in found.environment.items()
    ]
    rows += [
        Setting(name=name, texts=[_text(value) for value in values], is_automatic=True)
        for name, values in found.automatic.items()
    ]
    return rows


def evaluations(jobs: Sequence[ComparedJob]) -> list[Measured]:
    return [
        Measured(number=number, summary=job.evaluation)
        for number, job in enumerate(jobs, 1)
        if job.evaluation is not None
    ]


def _data(data: ComparedData | None) -> str:
    if data is None:
        return view.UNKNOWN
    rows = "" if data.rows is None else f", {data.rows:,} rows"
    return f"{data.filename or data.id}{rows}"


def _text(value: Any) -> str:  # Any: JSON
    if value is None:
        return view.UNKNOWN
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
