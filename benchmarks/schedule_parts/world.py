"""Simulated workers on the real scheduler. Claims, reports, the janitor and forecasts use the code
of the service, on SQLite; only the training is simulated."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tunesmith_schema import (
    Claim,
    Control,
    ErrorCode,
    JobState,
    Outcome,
    Recipe,
    RunEvent,
    StoredFile,
    WorkerHello,
)
from tunesmith_schema.methods import Hyperparameters
from tunesmith_server.core.database import Database
from tunesmith_server.core.errors import Conflict
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.janitor import Janitor
from tunesmith_server.models import (
    ApiKeyRow,
    FileRow,
    JobRow,
    ProjectRow,
    ResumePointRow,
    WorkerRow,
)
from tunesmith_server.scheduling import durations, snapshot, view
from tunesmith_server.scheduling.eligibility import packed
from tunesmith_server.services import workers
from tunesmith_server.services.leasing import claims, leases, making_room
from tunesmith_server.services.leasing.received import ReceivedReport

from .clock import Clock
from .week import JobPlan, Week

START = 1_780_000_000.0
LEASE_SECONDS, REPORT_SECONDS, JANITOR_SECONDS = 1800.0, 900.0, 300.0
CONTROL_SECONDS, SAVE_SECONDS = 3.0, 20.0
"""Seconds until a command reaches a worker, and seconds that a worker needs to store a resume
point."""
RESTART_SECONDS = 120.0
STEPS = 1000
MODEL = "tiny"


class NoWakeUps(WakeUps):
    """Broker that sends nothing, because the simulation wakes the workers."""

    def __init__(self) -> None:
        """Connect to no broker."""

    def send(self, task: str, subject_id: str) -> None:
        """Send nothing."""


@dataclass(kw_only=True)
class Device:
    """One simulated worker. `life` counts the deaths of the worker; the simulation ignores events
    from before the last death."""

    number: int
    device_bytes: int
    life: int = 0
    claim: Claim | None = None
    began: float = 0.0
    """Monotonic time of the claim."""
    done_before: float = 0.0
    """Share of the job that was done before the claim."""
    sent: int = 0
    yielding: bool = False

    @property
    def id(self) -> str:
        return f"train@{self.number:02d}-{self.life}"


@dataclass(kw_only=True)
class Record:
    """Recorded claims, waits and end times of the jobs of a simulation."""

    claims: list[tuple[float, str, str, int]] = field(default_factory=list)
    """Monotonic time, device, job and fence (number of the job's claim) of each claim."""
    held: dict[str, float] = field(default_factory=dict)
    """Device-seconds used, by project."""
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds from the arrival of each job to its first claim."""
    ends: dict[str, float] = field(default_factory=dict)
    refused_reports: int = 0
    preemptions: list[tuple[float, str]] = field(default_factory=list)
    estimates: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    """Job id, monotonic time of the estimate, and the estimated start time: expected, earliest,
    latest."""
    busy: list[tuple[float, float, int]] = field(default_factory=list)
    """Start, end and project of each period in which a job held a device."""


class World:
    """The scheduler's database, and the devices. `run` simulates a week."""

    def __init__(self, database: Database, settings: Settings, week: Week, clock: Clock) -> None:
        self._database, self._settings, self._week, self._clock = database, settings, week, clock
        self._wake_ups = NoWakeUps()
        self._service_janitor = Janitor(settings, database, cast(Any, None), self._wake_ups)
        self._devices = [
            Device(number=number, device_bytes=size) for number, size in enumerate(week.devices)
        ]
        self._plans = {job.id: job for job in week.jobs}
        self._events: list[tuple[float, int, str, tuple[Any, ...]]] = []  # Any: arguments
        self._number = 0
        self.record = Record()

    def run(self, estimates_every: float | None = None) -> Record:
        """Simulate the week, then continue until all jobs have ended."""
        self._insert_projects()
        for device in self._devices:
            self._hello(device)
        for job in self._week.jobs:
            self._at(job.arrives, "arrive", job)
        for when, number in self._week.deaths:
            self._at(when, "die", number)
        for when, seconds in self._week.clock_steps:
            self._at(when, "step_clock", seconds)
        self._at(JANITOR_SECONDS, "janitor")
        if estimates_every is not None:
            self._at(estimates_every, "estimate", estimates_every)
        while len(self.record.ends) < len(self._plans):
            when, _, name, arguments = heapq.heappop(self._events)
            self._clock.advance_to(when)
            getattr(self, f"_{name}")(*arguments)
            if when > self._week.hours * 3600 * 10:
                raise RuntimeError(f"{len(self._plans) - len(self.record.ends)} jobs never ended")
        return self.record

    def _at(self, when: float, name: str, *arguments: Any) -> None:  # Any: of the event
        self._number += 1
        heapq.heappush(self._events, (when, self._number, name, arguments))

    def _later(self, seconds: float, name: str, *arguments: Any) -> None:  # Any: of the event
        self._at(self._clock.steady + seconds, name, *arguments)

    def _insert_projects(self) -> None:
        with self._database.write.begin() as session:
            for number, weight in enumerate(self._week.weights):
                session.add(
                    ProjectRow(
                        id=f"proj-{number:02d}", name=f"p{number}", created_at=0.0, weight=weight
                    )
                )
            for user in range(self._week.users):
                project = f"proj-{user % len(self._week.weights):02d}"
                session.add(
                    ApiKeyRow(
                        id=f"key-{user}", name=f"user {user}", sha256=f"{user:064d}", prefix="ts",
                        created_at=0.0, project_id=project,
                    )
                )  # fmt: skip
            for file in sorted({job.file for job in self._week.jobs}):
                session.add(
                    FileRow(
                        id=file, created_at=0.0, filename="rows.jsonl", purpose="fine-tune",
                        bytes=1, sha256="0" * 64, status="processed",
                        project_id=f"proj-{file[5:7]}",
                    )
                )  # fmt: skip

    def _arrive(self, job: JobPlan) -> None:
        now = self._clock.time()
        with self._database.write.begin() as session:
            session.add(
                JobRow(
                    id=job.id, project_id=f"proj-{job.project:02d}", owner=f"key-{job.user}",
                    state=JobState.QUEUED, created_at=now, queued_at=now, woken_at=now,
                    model=MODEL, training_file=job.file, seed=0, recipe=RECIPE,
                    hyperparameters=HYPERPARAMETERS, priority=job.priority,
                    interactive=job.interactive, worker_labels=packed({}),
                    needs_bytes=job.device_bytes, failures=[], last_seq=0,
                )
            )  # fmt: skip
        self._wake_idle()
        if job.interactive:
            self._later(5.0, "make_room")

    def _wake_idle(self) -> None:
        for device in self._devices:
            if device.claim is None:
                self._claim(device, device.life)

    def _hello(self, device: Device) -> None:
        body = WorkerHello(
            worker_id=device.id, queue="train", host="host", device="gpu", version="1",
            models=[MODEL], device_bytes=device.device_bytes,
        )  # fmt: skip
        with self._database.write.begin() as session:
            workers.hello(session, body)

    def _claim(self, device: Device, life: int) -> None:
        if device.claim is not None or device.life != life:
            return
        with self._database.write.begin() as session:
            claim = claims.claim(session, self._settings, device.id)
        if claim is None:
            return
        plan, now = self._plans[claim.job_id], self._clock.steady
        device.claim, device.began, device.yielding, device.sent = claim, now, False, 0
        device.done_before = (claim.resume_points[0].step / STEPS) if claim.resume_points else 0.0
        self.record.claims.append((now, f"{device.number:02d}", claim.job_id, claim.fence))
        self.record.waits.setdefault(claim.job_id, now - plan.arrives)
        self._later(plan.seconds * (1 - device.done_before), "finish", device, life, claim.fence)
        self._later(min(REPORT_SECONDS, plan.seconds / 4), "report", device, life, claim.fence)

    def _is_over(self, device: Device, life: int, fence: int) -> bool:
        return device.life != life or device.claim is None or device.claim.fence != fence

    def _report(self, device: Device, life: int, fence: int, repeats: bool = True) -> None:
        if self._is_over(device, life, fence):
            return
        control = self._send(device, None)
        if control is Control.PAUSE and not device.yielding:
            device.yielding = True
            self._later(SAVE_SECONDS, "release", device, life, fence)
        if not device.yielding and repeats:
            self._later(REPORT_SECONDS, "report", device, life, fence)

    def _release(self, device: Device, life: int, fence: int) -> None:
        if self._is_over(device, life, fence):
            return
        assert device.claim is not None
        self.record.preemptions.append((self._clock.steady, device.claim.job_id))
        self._send(device, Outcome(state="released"))
        self._free(device)

    def _finish(self, device: Device, life: int, fence: int) -> None:
        if self._is_over(device, life, fence) or device.yielding:
            return
        assert device.claim is not None
        job_id = device.claim.job_id
        done = Outcome(state="succeeded", kind="lora", step=STEPS, trained_tokens=1, files=[FILE])
        if self._send(device, done) is not None:
            if job_id in self.record.ends:
                raise RuntimeError(f"{job_id} ended twice")
            self.record.ends[job_id] = self._clock.steady
        self._free(device)

    def _send(self, device: Device, outcome: Outcome | None) -> Control | None:
        """Store a resume point and send a report. Return the server's command, or None if the
        server refused the report."""
        claim = device.claim
        assert claim is not None
        plan = self._plans[claim.job_id]
        spent = self._clock.steady - device.began
        step = int(STEPS * min(1.0, device.done_before + spent / plan.seconds))
        device.sent += 1
        progress = RunEvent(
            source_seq=device.sent, created_at=self._clock.time(), kind="metrics", message="step",
            data={"step": step, "total_steps": STEPS},
        )  # fmt: skip
        report = ReceivedReport(
            worker_id=device.id, attempt=claim.attempt, fence=claim.fence, phase="train",
            events=[progress], outcome=outcome,
        )  # fmt: skip
        try:
            with self._database.write.begin() as session:
                _save_point(session, claim, step, self._clock.time())
                return leases.report(
                    session, self._settings, self._wake_ups, claim.job_id, report
                ).control
        except Conflict as error:
            if error.code != ErrorCode.FENCED_OUT:
                raise
            self.record.refused_reports += 1
            return None

    def _free(self, device: Device) -> None:
        assert device.claim is not None
        project = self._plans[device.claim.job_id].project
        self.record.busy.append((device.began, self._clock.steady, project))
        device.claim = None
        self._later(1.0, "claim", device, device.life)

    def _die(self, number: int) -> None:
        device = self._devices[number]
        dead = Device(**device.__dict__)
        if device.claim is not None:
            project = self._plans[device.claim.job_id].project
            self.record.busy.append((device.began, self._clock.steady, project))
            # The dead worker reports after the end of its lease; the server must refuse this.
            self._later(LEASE_SECONDS * 2, "stale_report", dead)
        device.life += 1
        device.claim = None
        self._later(RESTART_SECONDS, "restart", device, device.life)

    def _stale_report(self, dead: Device) -> None:
        assert dead.claim is not None
        if dead.claim.job_id not in self.record.ends and self._send(dead, None) is not None:
            raise RuntimeError(f"{dead.claim.job_id}: a report after the lease's end was accepted")

    def _restart(self, device: Device, life: int) -> None:
        if device.life == life:
            self._hello(device)
            self._claim(device, life)

    def _step_clock(self, seconds: float) -> None:
        self._clock.step(seconds)

    def _janitor(self) -> None:
        self._later(JANITOR_SECONDS, "janitor")
        with self._database.write.begin() as session:
            may_expire = self._janitor_allows(session)
            if may_expire:
                leases.take_back_expired(session, self._settings)
        self._make_room()
        self._wake_idle()

    def _janitor_allows(self, session: Session) -> bool:
        return self._service_janitor._may_expire_leases(session)

    def _see_workers(self, session: Session) -> None:
        alive = [device.id for device in self._devices]
        session.execute(
            update(WorkerRow)
            .where(WorkerRow.worker_id.in_(alive))
            .values(last_seen=self._clock.time())
        )

    def _make_room(self) -> None:
        with self._database.write.begin() as session:
            self._see_workers(session)
            if not making_room.make_room(session):
                return
            asked = set(session.scalars(select(JobRow.id).where(JobRow.yield_reason.is_not(None))))
        for device in self._devices:
            claim = device.claim
            if claim is not None and claim.job_id in asked:
                arguments = (device, device.life, claim.fence, False)
                self._later(CONTROL_SECONDS, "report", *arguments)

    def _estimate(self, every: float) -> None:
        self._later(every, "estimate", every)
        with self._database.write.begin() as session:
            self._see_workers(session)
            seen, examples = snapshot.read(session), durations.examples(session)
        seen_view = view.compute(seen, examples)
        for job in seen.waiting:
            start = seen_view.estimated_start(job)
            if start is not None:
                offset = self._clock.steady - self._clock.time()
                at, earliest, latest = (
                    time + offset for time in (start.at, start.earliest, start.latest)
                )
                estimate = (job.id, self._clock.steady, at, earliest, latest)
                self.record.estimates.append(estimate)


RECIPE = Recipe().model_dump(mode="json")
HYPERPARAMETERS = Hyperparameters().model_dump(mode="json")
FILE = StoredFile(name="a.safetensors", bytes=1, sha256="0" * 64)


def _save_point(session: Session, claim: Claim, step: int, now: float) -> None:
    row = session.get(ResumePointRow, (claim.job_id, step))
    job = session.get_one(JobRow, claim.job_id)
    if row is None and step and job.fence == claim.fence:
        session.add(
            ResumePointRow(
                job_id=claim.job_id, step=step, created_at=now, bytes=1,
                files=[FILE.model_dump()],
            )
        )  # fmt: skip
