"""The layout of each step: settled from the start, measured while training, or as a plan says.

Times what the host sees of forward and backward; what is fastest is the plan's to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch

from tunesmith_schema import Choice

from ..plan import Choices, Layout, LayoutPlan, LayoutTrial

NAME = "packing"
"""Of the choice."""


class Layouts:
    def __init__(self, plan: LayoutPlan, choices: Choices, decided: Callable[[], None]) -> None:
        """`decided`: called once the choice that was measured has been made."""
        self._plan, self._choices, self._decided = plan, choices, decided
        self._trial: LayoutTrial | None = None
        self._replayed: list[str] = []
        self._settled = plan.first
        earlier = choices.earlier(NAME)
        if earlier is not None and earlier.value in plan.candidates:
            self._settled = str(earlier.value)
            self._replayed = cast(list[str], earlier.figures.get("steps", []))
            choices.add(earlier)
        elif len(plan.candidates) == 1:
            choices.add(Choice(name=NAME, value=plan.first, reason=plan.reason))
        else:
            self._trial = LayoutTrial(plan.slots_per_token)

    @property
    def settled(self) -> Layout:
        """What the run goes by, as far as is known."""
        return self._plan.candidates[self._settled]

    @property
    def open(self) -> dict[str, Layout]:
        """Those that may still be laid out, by name."""
        if self._trial is None:
            names = {self._settled, *self._replayed}
            return {name: self._plan.candidates[name] for name in names}
        return dict(self._plan.candidates)

    def rule_out(self, name: str, reason: str) -> None:
        """Before the first step: not that one, nor the trial if no other is left to compare."""
        plan = self._plan
        assert self._trial is not None
        assert name != plan.first
        kept = {other: one for other, one in plan.candidates.items() if other != name}
        ratios = {other: plan.slots_per_token[other] for other in kept}
        self._plan = replace(plan, candidates=kept, slots_per_token=ratios)
        self._trial = LayoutTrial(ratios) if len(kept) > 1 else None
        if self._trial is None:
            self._choices.add(Choice(name=NAME, value=plan.first, reason=f"{name}: {reason}"))

    @property
    def measuring(self) -> bool:
        return self._trial is not None

    def of_step(self, step: int) -> Layout:
        """`step`: optimiser steps done before it."""
        if self._trial is not None:
            return self._plan.candidates[self._trial.current]
        if step < len(self._replayed):
            return self._plan.candidates[self._replayed[step]]
        return self.settled

    @contextmanager
    def timed(self, slots: int) -> Iterator[None]:
        """Around forward and backward of a step whose micro-batches have so many slots."""
        if self._trial is None:
            yield
            return
        start = _now()
        yield
        self._trial.record(_now() - start, slots)
        if not self._trial.running:
            self._decide(self._trial)

    def _decide(self, trial: LayoutTrial) -> None:
        self._trial, self._settled, self._replayed = None, trial.current, trial.steps
        speeds = {name: round(speed, 1) for name, speed in trial.tokens_per_second().items()}
        told = ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items())
        self._choices.add(
            Choice(
                name=NAME,
                value=self._settled,
                reason=f"tokens a second, measured over {len(trial.steps)} steps: {told}",
                figures={
                    "tokens_per_second": {**speeds},
                    "slots_per_token": {**self._plan.slots_per_token},
                    "steps": [*trial.steps],
                },
            )
        )
        self._decided()


def _now() -> float:
    """Seconds. A CPU's own when one thread computes, so that other programs do not count."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.thread_time() if _one_thread() else time.perf_counter()


def _one_thread() -> bool:
    return not torch.cuda.is_available() and torch.get_num_threads() == 1
