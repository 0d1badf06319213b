"""Measurements of training for the report and for the live metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith_schema import (
    COMPUTE,
    ROLLOUT,
    Choice,
    PhaseName,
    RunReport,
    Throughput,
    TrainingSettings,
    Utilization,
)
from tunesmith_worker.engine.memory.recompute import LayerCounters
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.trainer.auto.layouts import Layouts

from .batches import BatchCounts, saturation_of
from .flops import FlopsShape, model_shape, peak_tflops
from .memory import memory_now, peak_memory
from .rollouts import RolloutCounts
from .steps import time_steps

Untyped = Any  # Any: transformers and TRL are untyped
LIVE_SECONDS = 1.0
"""Minimum seconds between two updates of the live metrics, so that short steps do not cause many
events."""
STEPPING = (PhaseName.DATA_WAIT, *ROLLOUT, *COMPUTE, PhaseName.LOGGING, PhaseName.TRAIN)
"""Phases whose time is used for rates, such as tokens per second."""


LIVE = (*ROLLOUT, PhaseName.FORWARD, PhaseName.BACKWARD)
"""Phases of a reinforcement step whose time shares are logged as metrics."""
_AT_WORK = (PhaseName.SYNC, PhaseName.GENERATE, PhaseName.LOG_PROBS, *COMPUTE)


@dataclass(frozen=True, kw_only=True)
class _Counts:
    wall: float
    seconds: dict[str, float]
    slots: int
    tokens: int
    generated: int
    step: int


class TrainingWatch:
    """Measures the time that a trainer spends in each phase. Create this object just before
    training."""

    def __init__(
        self,
        trainer: Untyped,
        settings: TrainingSettings,
        layouts: Layouts,
        clock: WallClock,
        *,
        device: str,
        choices: list[Choice],
        layers: LayerCounters,
    ) -> None:
        self._trainer, self._settings, self._clock = trainer, settings, clock
        self._layouts = layouts
        self._device, self._choices, self._layers = device, choices, layers
        self._shape = model_shape(trainer.model, full=settings.tuning == "full")
        windows = self._shape.windows if isinstance(self._shape, FlopsShape) else ()
        self._counts, self.rollouts = BatchCounts(windows), RolloutCounts()
        self._timeline = time_steps(trainer, clock, self._counts)
        self._last = self._now()

    def fill_in(self, report: RunReport) -> None:
        """Set all fields of the report that describe training."""
        report.steps = self._trainer.state.global_step
        report.total_steps = self._trainer.state.max_steps or None
        layout = self._layouts.chosen.kind
        report.settings = self._settings.model_copy(update={"layout": layout})
        report.choices = self._choices
        report.device, report.layers = self._device, self._layers.read()
        report.peak_memory = peak_memory()
        if self._timeline is not None and self._timeline.steps:
            report.device_waits_share = _share(self._timeline.waits, self._timeline.steps)
        report.rollouts = self.rollouts.read(report.phases.get(PhaseName.GENERATE, 0.0))
        here = report.steps - self._trainer.steps_before
        if here == 0:
            return
        seconds = sum(report.phases.get(name, 0.0) for name in STEPPING)
        report.throughput = self._throughput(seconds, here)
        generation = sum(report.phases.get(name, 0.0) for name in ROLLOUT)
        report.utilization = self._utilization(seconds - generation)
        if report.rollouts is not None:
            report.rollouts.idle_share = _share(_idle(report.phases, seconds), seconds)
            report.utilization.reason += "; the generation of completions is not counted"
        report.saturation = saturation_of(
            self._counts.fit,
            device="CPU" if self._timeline is None else "GPU",
            waits=report.device_waits_share,
        )

    def live(self) -> dict[str, float | None]:
        """Return live metrics, averaged over the time since the last call that returned metrics. If
        that call was less than `LIVE_SECONDS` ago, return {}.
        """
        if self._clock.wall - self._last.wall < LIVE_SECONDS and self._last.step:
            return {}
        before, now = self._last, self._now()
        self._last = now
        passed = {name: s - before.seconds.get(name, 0.0) for name, s in now.seconds.items()}
        stepping = sum(passed.get(name, 0.0) for name in STEPPING)
        slots, steps = now.slots - before.slots, now.step - before.step
        return {
            "step_seconds": round(stepping / steps, 6) if steps else None,
            "data_wait_share": _share(passed.get(PhaseName.DATA_WAIT, 0.0), stepping),
            "padding_share": _padding(slots, now.tokens - before.tokens),
            **self._live_rollouts(before, now, passed, stepping),
            **memory_now(),
        }

    def _live_rollouts(
        self, before: _Counts, now: _Counts, passed: dict[str, float], stepping: float
    ) -> dict[str, float | None]:
        if not self.rollouts.rounds:
            return {}
        generating = passed.get(PhaseName.GENERATE, 0.0)
        return {
            **{f"{name}_share": _share(passed.get(name, 0.0), stepping) for name in LIVE},
            "idle_share": _share(_idle(passed, stepping), stepping),
            "generated_tokens_per_second": _rate(now.generated - before.generated, generating),
        }

    def _now(self) -> _Counts:
        return _Counts(
            wall=self._clock.wall,
            seconds=self._clock.read(),
            slots=self._counts.slots,
            tokens=self._counts.tokens,
            generated=self.rollouts.generated_tokens,
            step=self._trainer.state.global_step - self._trainer.steps_before,
        )

    def _throughput(self, seconds: float, steps: int) -> Throughput:
        trained = int(self._trainer.trained_tokens) - self._trainer.tokens_before
        counts, generated = self._counts, self.rollouts.generated_tokens
        return Throughput(
            seconds=round(seconds, 3),
            steps_per_second=_rate(steps, seconds),
            input_tokens=counts.tokens,
            trained_tokens=trained,
            tokens_per_second=_rate(counts.tokens, seconds),
            trained_tokens_per_second=_rate(trained, seconds),
            slots=counts.slots,
            padding_share=_padding(counts.slots, counts.tokens),
            micro_batches=counts.micro_batches,
            generated_tokens=generated,
            generated_tokens_per_second=_rate(generated, seconds) if generated else None,
        )

    def _utilization(self, seconds: float) -> Utilization:
        shape = self._shape
        if isinstance(shape, str):
            return Utilization(reason=shape)
        flops = shape.flops(self._counts.tokens, self._counts.pairs)
        peak = peak_tflops(self._device) if self._settings.precision != "fp32" else None
        if self._device == "cpu":
            reason = "not available on CPU"
        elif self._settings.precision == "fp32":
            reason = "only bf16 peaks are known, but this run computes in fp32"
        elif peak is None:
            reason = f"the peak of {self._device} is not known"
        else:
            reason = f"{shape.formula}, over {peak:g} TFLOP/s of {self._device}"
            mfu = flops / (seconds * peak * 1e12) if seconds else None
            return Utilization(mfu=mfu, reason=reason, model_flops=flops, peak_tflops=peak)
        return Utilization(reason=reason, model_flops=flops)


def _padding(slots: int, tokens: int) -> float | None:
    """Return the share of padding in the token positions. Return None if there are no tokens, or
    fewer positions than tokens. Shared prompts can lead to fewer positions, because a shared prompt
    is computed only once."""
    return _share(slots - tokens, slots) if 0 < tokens <= slots else None


def _idle(seconds: Mapping[str, float], stepping: float) -> float:
    return stepping - sum(seconds.get(name, 0.0) for name in _AT_WORK)


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rate(count: float, seconds: float) -> float | None:
    return round(count / seconds, 2) if seconds else None
