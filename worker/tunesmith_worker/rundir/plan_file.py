"""Read and write plan.json: the choices of this run, and of an earlier run with the same spec.

Every choice is also written as an event.
"""

from __future__ import annotations

import hashlib

from pydantic import ValidationError

from tunesmith_schema import Choice, EventKind, Plan, RunSpec
from tunesmith_schema.documents import read_file

from .events import EventLog
from .paths import RunDirectory, file_hash, write_json
from .plan import Choices


class PlanFile:
    def __init__(self, run: RunDirectory, spec: RunSpec, events: EventLog) -> None:
        self._path, self._events = run.plan, events
        self.made_for = made_for(run, spec)
        self.choices = Choices(self._earlier(), on_choice=self._append_event)

    def write(self) -> None:
        write_json(self._path, self._plan)

    def text(self) -> str:
        """Return the text of plan.json with the choices made so far."""
        return self._plan.model_dump_json(indent=1)

    @property
    def _plan(self) -> Plan:
        return Plan(made_for=self.made_for, choices=self.choices.made)

    def _earlier(self) -> Plan | None:
        if not self._path.exists():
            return None
        try:
            plan = read_file(Plan, self._path.read_bytes())
        except ValidationError:
            self._events.message(
                "plan.json is from another version; choices are recomputed", level="warn"
            )
            return None
        if plan.made_for == self.made_for:
            return plan
        self._events.message("plan.json is from another spec or other data; choices are recomputed")
        return None

    def _append_event(self, choice: Choice) -> None:
        self._events.append(
            EventKind.CHOICE,
            f"{choice.name} = {choice.value}: {choice.reason}",
            choice.model_dump(mode="json", exclude_defaults=True),
        )


def made_for(run: RunDirectory, spec: RunSpec) -> str:
    """Return the SHA-256 of the choices' inputs: the spec and its data files."""
    files = filter(None, (spec.training_file, spec.validation_file))
    parts = [spec.sha256(), *(file_hash(run.root / file) for file in files)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
