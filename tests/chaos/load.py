"""Users of the service under attack: a thread that uploads files and creates jobs, and one thread
for each job that follows its events."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import tunesmith
from tunesmith_schema import TERMINAL, Event, EventKind

from .recipes import ALL, GRADER, SEED

T = TypeVar("T")

OUTAGE_SECONDS = 90.0
"""Longest time for which a call is repeated while the API is down."""
_LOOK_SECONDS = 0.2


@dataclass
class Track:
    """One job as its follower sees it."""

    job_id: str
    recipe: str
    events: list[Event] = field(default_factory=list)
    step: int = 0
    """Newest step that the follower saw."""
    state: str = "queued"
    error: str = ""
    """Error that ended the following."""

    @property
    def has_ended(self) -> bool:
        return self.state in TERMINAL or bool(self.error)


class Load:
    """Keeps `depth` unfinished jobs on the service until `finish`."""

    def __init__(
        self, client: tunesmith.Client, rows: Path, recipes: list[str], depth: int
    ) -> None:
        self._client, self._rows, self._depth = client, rows, depth
        self._recipes, self._names = itertools.cycle(recipes), itertools.count()
        self._full, self._file_wanted = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="users", daemon=True)
        self.tracks: list[Track] = []
        self.files: list[str] = []
        self.errors: list[str] = []
        """Calls that failed although the service was only restarting."""

    def start(self) -> None:
        self._thread.start()

    def ask_for_file(self) -> None:
        """Upload one more file soon, so that a light worker reads it."""
        self._file_wanted.set()

    def finish(self) -> None:
        """Create no more jobs."""
        self._full.set()
        self._thread.join(2 * OUTAGE_SECONDS)

    def unfinished(self) -> list[Track]:
        return [track for track in self.tracks if not track.has_ended]

    def steps(self) -> int:
        """Return the sum of the steps of all jobs, without steps that are to be repeated."""
        return sum(track.step for track in self.tracks)

    def create(self, recipe: str) -> Track:
        """Upload the rows as a new file, create a job and follow it."""
        file_id = self.upload()
        key = f"chaos-{next(self._names)}"
        job = self.persist(
            lambda: self._client.fine_tuning.jobs.create(
                model="tiny",
                training_file=file_id,
                seed=SEED,
                recipe=ALL[recipe],
                grader=GRADER if "grpo" in ALL[recipe] else None,
                idempotency_key=key,
            )
        )
        track = Track(job.id, recipe)
        threading.Thread(target=self._follow, args=[track], daemon=True).start()
        self.tracks.append(track)
        return track

    def upload(self) -> str:
        """Upload the rows with other white space, so that the SDK does not reuse a file."""
        number = next(self._names)
        text = self._rows.read_text().replace("\n", " " * (number + 1) + "\n", 1)
        content = (f"rows-{number}.jsonl", text.encode())
        self.files.append(self.persist(lambda: self._client.files.create(file=content)).id)
        return self.files[-1]

    def persist(self, call: Callable[[], T]) -> T:
        """Repeat a call while the API does not answer. An answer with another error is a fault of
        the service and is recorded."""
        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                return call()
            except (tunesmith.APIConnectionError, tunesmith.APIStatusError) as error:
                status = getattr(error, "status_code", 503)
                if status != 503:
                    self.errors.append(f"{status}: {error}"[:300])
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)

    def _run(self) -> None:
        recipe = next(self._recipes)
        while not self._full.wait(_LOOK_SECONDS):
            try:
                if self._file_wanted.is_set():
                    self._file_wanted.clear()
                    self.upload()
                if len(self.unfinished()) < self._depth:
                    self.create(recipe)
                    recipe = next(self._recipes)
            except tunesmith.TunesmithError as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:300])

    def _follow(self, track: Track) -> None:
        try:
            for event in self._client.fine_tuning.jobs.stream(track.job_id):
                track.events.append(event)
                step = event.data.get("step")
                if event.kind in (EventKind.METRICS, EventKind.RESUMED) and isinstance(step, int):
                    track.step = step
                if event.kind == EventKind.STATE:
                    track.state = str(event.data["state"])
        except tunesmith.TunesmithError as error:
            track.error = f"{type(error).__name__}: {error}"
