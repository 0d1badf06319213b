"""Current micro-batch layout of a run. If plan.json exists, the run uses the layout in plan.json.
If memory runs out, the run switches to the layout that needs the least memory.
"""

from __future__ import annotations

from pydantic import JsonValue

from tunesmith_schema import Choice
from tunesmith_worker.rundir.plan import Choices

from .layout_choice import Layout, LayoutPlan

NAME = "packing"
"""Key under which plan.json stores the layout."""
SMALLER = "padding_free"
"""The layout that needs the least memory."""


class Layouts:
    def __init__(self, plan: LayoutPlan, choices: Choices) -> None:
        self._plan, self._choices, self._name = plan, choices, plan.first
        earlier = choices.earlier(NAME)
        if earlier is not None and earlier.value in plan.layouts:
            self._name = str(earlier.value)
            choices.reuse(earlier)
        else:
            choices.add(self._choice(plan.reason))

    @property
    def chosen(self) -> Layout:
        """Layout for all training steps and evaluations."""
        return self._plan.layouts[self._name]

    @property
    def has_smaller(self) -> bool:
        """True if another layout needs less memory."""
        return self._name != SMALLER and SMALLER in self._plan.layouts

    @property
    def smaller(self) -> Layout:
        """Layout that needs less memory; valid only if `has_smaller` is true."""
        return self._plan.layouts[SMALLER]

    def use_smaller(self, reason: str) -> str:
        """Switch to the layout that needs less memory; return a message about the switch."""
        before, self._name = self._name, SMALLER
        self._choices.replace(self._choice(f"{before} {reason}"))
        return f"Micro-batches are {SMALLER}, because the layout {before} {reason}."

    def _choice(self, reason: str) -> Choice:
        figures: dict[str, JsonValue] = {
            "slots_per_token": round(self._plan.slots_per_token, 4),
            "alternatives": [name for name in self._plan.layouts if name != self._name],
        }
        return Choice(name=NAME, value=self._name, reason=reason, figures=figures)
