"""The layout of each step: fixed from the start, measured while training, or from plan.json.

`Layouts` times forward and backward; `LayoutTrial` decides which layout is fastest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast  # Any: JSON

import torch

from tunesmith_schema import Choice
from tunesmith_worker.engine.patches import CompiledLayers
from tunesmith_worker.rundir.plan import Choices

from .layout_choice import COMPILED, Layout, LayoutPlan
from .layout_trial import LayoutTrial

NAME = "packing"
"""Key of this choice in plan.json."""


class Layouts:
    def __init__(
        self, plan: LayoutPlan, choices: Choices, *, total_steps: int, on_choice: Callable[[], None]
    ) -> None:
        """`on_choice`: called after the measured choice has been made."""
        self._plan, self._choices, self._on_choice = plan, choices, on_choice
        self._total_steps = total_steps
        self._compiled: CompiledLayers | None = None
        self._gave_up_compiling = False
        self._trial: LayoutTrial | None = None
        self._steps: list[str] = []
        """Layout name of each step during the measurement."""
        self._speeds: dict[str, float] = {}
        self._chosen = self._current = plan.first
        earlier = choices.earlier(NAME)
        steps = cast(list[str], earlier.figures.get("steps", [])) if earlier else []
        if earlier is not None and {earlier.value, *steps} <= plan.layouts.keys():
            self._chosen, self._steps = str(earlier.value), [*steps]
            choices.reuse(earlier)
        elif len(plan.candidates) == 1:
            choices.add(Choice(name=NAME, value=plan.first, reason=plan.reason))
        else:
            self._trial = LayoutTrial(plan.slots_per_token)

    def state(self) -> dict[str, Any]:
        """Return the state that plan.json does not hold yet, as JSON; do not change it."""
        if self._trial is None:
            return {}
        return {
            "steps": [*self._steps],
            "speeds": self._speeds,
            "settled": self._chosen,
            "gave_up_compiling": self._gave_up_compiling,
            "trial": self._trial.state(),
        }

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Restore `state` as of `step`, after the model is patched and its memory is planned.

        A choice that plan.json holds takes precedence."""
        if self._trial is None:
            return
        trial = LayoutTrial.from_state(state["trial"]) if state else None
        if trial is not None and trial.names <= {COMPILED, *self._plan.candidates}:
            self._trial, self._steps = trial, state["steps"]
            self._speeds, self._chosen = state["speeds"], state["settled"]
            if state["gave_up_compiling"]:
                self._give_up_compiling()
        else:  # a fork with other layouts starts its own trial here
            self._steps = [self._plan.first] * step

    def _give_up_compiling(self) -> None:
        if self._compiled is not None:
            self._compiled.use(False)
        self._compiled, self._gave_up_compiling = None, True  # once is enough

    @property
    def chosen(self) -> Layout:
        """Layout chosen so far."""
        return self._plan.layouts[self._chosen]

    @property
    def untried(self) -> dict[str, Layout]:
        """Layouts still to be measured against the first one, by name."""
        if self._trial is None:
            return {}
        return {
            name: layout
            for name, layout in self._plan.candidates.items()
            if name != self._plan.first
        }

    def rule_out(self, name: str, reason: str) -> None:
        """Remove a candidate before the first step; without a second one, end the trial."""
        plan = self._plan
        assert name in self.untried
        kept = {key: layout for key, layout in plan.candidates.items() if key != name}
        ratios = {key: plan.slots_per_token[key] for key in kept}
        self._plan = replace(plan, candidates=kept, slots_per_token=ratios)
        self._trial = LayoutTrial(ratios) if len(kept) > 1 else None
        if self._trial is None:
            self._choices.add(Choice(name=NAME, value=plan.first, reason=f"{name}: {reason}"))

    @property
    def measuring(self) -> bool:
        """True while layouts are being measured."""
        return self._trial is not None

    def may_compile(self, layers: CompiledLayers) -> None:
        """Allow compiling these layers of the padded layout; call after patching."""
        self._compiled = layers

    def for_step(self, step: int) -> Layout:
        """Return the layout of a step. `step`: number of optimiser steps before it."""
        if self._trial is not None:
            self._current = self._trial.current
        else:
            self._current = self._steps[step] if step < len(self._steps) else self._chosen
        layout = self._plan.layouts[self._current]
        if self._compiled is not None:
            self._compiled.use(layout.compiled and self._compiled.estimated_seconds is not None)
        return layout

    def for_evaluation(self) -> Layout:
        """Return the chosen layout, without compiled layers."""
        if self._compiled is not None:
            self._compiled.use(False)
        return self.chosen

    def give_up(self, failure: str) -> str | None:
        """Drop the current step's layout after a failure; return a message, or None if no other
        layout is possible."""
        name, trial = self._current, self._trial
        if name == COMPILED and self._compiled is not None:
            self._give_up_compiling()
        if trial is not None and name not in (self._plan.first, self._chosen):
            trial.remove(name)
            if not trial.running:
                self._ended(trial, 0.0)
        elif name == COMPILED:
            self._chosen = "padded"
            self._steps = ["padded" if step == COMPILED else step for step in self._steps]
        else:
            return None
        return f"{name} micro-batches failed and are no longer used: {failure}"

    @contextmanager
    def timed(self, slots: int) -> Iterator[None]:
        """Time forward and backward of a step with this many slots."""
        trial, compiled = self._trial, self._compiled
        if trial is None:
            yield
            return
        compiles = compiled and trial.current == COMPILED and COMPILED not in trial.steps
        start = _now()
        with compiled.first_use() if compiled and compiles else nullcontext():
            yield
        seconds = _now() - start
        trial.record(seconds, slots)
        if not trial.running:
            self._ended(trial, seconds)

    def training_ended(self) -> None:
        """Record the layouts of an unfinished trial, so that a rerun takes the same steps."""
        trial = self._trial
        if trial is not None and trial.steps:
            self._steps += trial.steps
            self._trial = None
            self._choose(f"the run ended after {len(self._steps)} steps, before the trial did")

    def _ended(self, trial: LayoutTrial, step_seconds: float) -> None:
        self._steps += trial.steps
        self._speeds |= {name: round(speed, 1) for name, speed in trial.tokens_per_second().items()}
        self._chosen, self._trial = trial.current, None
        needed = self._compiled.estimated_seconds if self._compiled else None
        left = (self._total_steps - len(self._steps)) * step_seconds
        if (
            COMPILED not in trial.steps
            and needed is not None
            and self._plan.compiling_pays(self._speeds, left, needed)
        ):
            ratios = self._plan.slots_per_token
            pair = {self._chosen: ratios[self._chosen], COMPILED: ratios["padded"]}
            self._trial = LayoutTrial(pair, slow_start=COMPILED)
            return
        speeds = ", ".join(f"{name} {speed:,.0f}" for name, speed in self._speeds.items())
        self._choose(f"{_unit()}, measured over {len(self._steps)} steps: {speeds}")

    def _choose(self, reason: str) -> None:
        self._choices.add(
            Choice(
                name=NAME,
                value=self._chosen,
                reason=reason,
                figures={
                    "tokens_per_second": {**self._speeds},
                    "slots_per_token": {**self._plan.slots_per_token},
                    "steps": [*self._steps],
                },
            )
        )
        self._on_choice()


def _now() -> float:
    """Return seconds; CPU time if one thread computes, so that other programs do not count."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.thread_time() if _one_thread_computes() else time.perf_counter()


def _unit() -> str:
    """Return the unit of speeds measured with `_now`."""
    return "tokens per CPU-second" if _one_thread_computes() else "tokens per second"


def _one_thread_computes() -> bool:
    return not torch.cuda.is_available() and torch.get_num_threads() == 1
