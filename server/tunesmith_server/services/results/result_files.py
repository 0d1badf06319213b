"""Result file of a job in OpenAI's format: a CSV file of metrics. The file is not stored: each
request makes it from the stored metrics."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, FileObject
from tunesmith_server.models import JobRow, MetricRow

COLUMNS = {
    "step": "step",
    "train_loss": "train_loss",
    "train_mean_token_accuracy": "train_accuracy",
    "valid_loss": "valid_loss",
    "valid_mean_token_accuracy": "valid_mean_token_accuracy",
}
"""Metrics of the result file, each with the name of its column in OpenAI's format."""
REWARDS = {"reward": "train_mean_reward", "valid_reward": "valid_mean_reward"}
"""Additional metrics of a reinforcement job, each with the name of its column."""
_ID = re.compile(r"file-metrics-([0-9a-f]{24})")


def ids_of(job_id: str, state: str, has_metrics: bool) -> list[str]:
    """Return the ids of a job's result files: one id if the job has ended and has metrics, else
    none."""
    over = state in TERMINAL and has_metrics
    return [f"file-metrics-{job_id.removeprefix('ftjob-')}"] if over else []


def job_of(session: Session, file_id: str) -> JobRow | None:
    """Return the job whose result file has this id; None for other files."""
    match = _ID.fullmatch(file_id)
    job = session.get(JobRow, f"ftjob-{match[1]}") if match else None
    return job if job and ids_of(job.id, job.state, bool(job.last_metrics)) else None


def content(session: Session, job: JobRow) -> bytes:
    """Return the CSV file: one row for each logged step, an empty field for a missing value, `nan`
    for NaN."""
    names = COLUMNS | (REWARDS if job.method_name == "reinforcement" else {})
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names.values())
    for step, values in _steps(session, job.id, [name for name in names if name != "step"]):
        shown = {"step": step} | {n: "nan" if v is None else v for n, v in values.items()}
        writer.writerow(shown.get(name, "") for name in names)
    return text.getvalue().encode()


def _steps(
    session: Session, job_id: str, names: list[str]
) -> Iterator[tuple[int, dict[str, float | None]]]:
    rows = session.execute(
        select(MetricRow.step, MetricRow.name, MetricRow.value)
        .where(MetricRow.job_id == job_id, MetricRow.name.in_(names))
        .order_by(MetricRow.step, MetricRow.name)
        .execution_options(yield_per=1000)
    )
    for step, group in groupby(rows, key=itemgetter(0)):
        yield step, {name: value for _, name, value in group}


def to_wire(session: Session, job: JobRow) -> FileObject:
    made = content(session, job)
    return FileObject(
        id=ids_of(job.id, job.state, True)[0],
        bytes=len(made),
        created_at=int(job.finished_at or time.time()),
        filename=f"{job.id}-metrics.csv",
        purpose="fine-tune-results",
        status="processed",
        sha256=hashlib.sha256(made).hexdigest(),
    )
