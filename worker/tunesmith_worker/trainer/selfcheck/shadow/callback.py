"""Callback that checks the first optimizer step of an attempt against plain torch."""

from __future__ import annotations

from typing import Any

from tunesmith_worker.trainer.selfcheck.findings import Finding, report_findings

from .compare import check_clipping, gradients_of
from .update import FirstUpdate
from .watch import StepReport, StepWatch

Untyped = Any  # Any: transformers and TRL are not typed


class FirstStepShadow(StepWatch):
    """Checks the first step of each attempt, in new and in resumed runs.

    All findings are reported after the step. The tripwires report before this callback, because
    messages of tripwires are more specific."""

    _due = False
    _report: StepReport | None = None
    _update: FirstUpdate | None = None
    _findings: tuple[Finding, ...] = ()

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._due = True
        self.check.start()

    def on_pre_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        if not self._due:
            return
        trainer = self.context.trainer
        with self.checking():
            self._report = self.check.compare()
            gradients = gradients_of(trainer.model)
            max_norm = self.context.train_plan.max_grad_norm
            clipping = check_clipping(float(trainer.guard.norm), gradients, max_norm)
            if clipping:  # the cause of all other differences
                self._report = StepReport(detail="", findings=tuple(clipping))
            self._update = FirstUpdate(self.context.model, self.optimizer)

    def on_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        if self._report is None or self._update is None:
            return
        with self.checking():
            wanted = self.wanted_rates(state.global_step)
            self._findings = (*self._report.findings, *self._update.check(wanted))

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if self._report is None or self._update is None:
            return
        self._due = False
        self.context.trainer.guard.check()  # a NaN has its own message
        report_findings(self._findings, self.events, state.global_step)
        update, step = self._update, state.global_step
        weights = "all" if update.compared == update.total else f"{update.compared:,} of"
        detail = (
            f"{self._report.detail}; the update of {weights} {update.total:,} weights equals "
            "AdamW in plain torch"
        )
        name = "first step" if step == 1 else f"step {step}, the first after resuming"
        self.recorder.first_step = f"{name}: {detail}"
        self.events.message(
            f"{name}: {detail} ({self.seconds:.1f} s)",
            data={"first_step": detail, "step": step, "seconds": round(self.seconds, 3)},
        )
        self._report = self._update = None
