"""Settles the memory of a run before its first step, and says at the end how it was.

The closed form chooses, the longest micro-batch that the data can make is run once as chosen, what
it held corrects the closed form, and that chooses again. The choice, what else there was and the
predicted peak are one choice of plan.json, `memory_plan`, which a resumed run takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from pydantic import JsonValue

from tunesmith_schema import ErrorCategory, ErrorCode, Precision
from tunesmith_worker.engine.memory.choose import GradientCheckpointing, Option, Planner
from tunesmith_worker.engine.memory.describe import (
    NAME,
    describe_change,
    format_bytes,
    policy_json,
    stored_policy,
    summary,
    to_choice,
)
from tunesmith_worker.engine.memory.estimate import Correction, Policy, layer_kept, predict
from tunesmith_worker.engine.memory.free_memory import HostPeak, measure_speed, read_free_memory
from tunesmith_worker.engine.memory.parameter_sizes import read_tuning
from tunesmith_worker.engine.memory.probe import Probe, run_probe
from tunesmith_worker.engine.memory.recompute import LayerCounters, LayerModes
from tunesmith_worker.engine.memory.retry import EvaluationRetry, StepRetry, first_line
from tunesmith_worker.engine.memory.shapes import Engine, MicroBatch, shape_of
from tunesmith_worker.engine.patches.report import PatchReport
from tunesmith_worker.rundir.errors import RunError, is_out_of_memory
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.plan import Choices

from .layout_choice import Layout
from .layouts import Layouts

Untyped = Any  # Any: transformers and TRL are not typed
_TELLING = 256 * 2**20
"""A smaller peak says little beside what a process needs anyway."""


class MemoryPlan:
    """One run's: settle it, train, then report.

    The trainer says what its steps are: `longest_step`, its `micro_batches`, how each is
    `describe`d, and how much of one there is `probe_batch` with what `probe_loss`.
    """

    def __init__(
        self,
        trainer: Untyped,
        layouts: Layouts,
        patched: PatchReport | None,
        *,
        checkpointing: GradientCheckpointing,
        may_split: bool,
        full: bool,
        precision: Precision,
        choices: Choices,
        events: EventLog,
        write: Callable[[], None],
    ) -> None:
        """`checkpointing`: recipe.gradient_checkpointing; `may_split`: the user has not set the
        rows of a micro-batch; `write` writes plan.json."""
        self._trainer, self._layouts, self._events = trainer, layouts, events
        self._choices, self._write = choices, write
        model = trainer.model
        self._modes = LayerModes(model)
        self._device: torch.device = trainer.args.device
        shape = shape_of(model.config)
        can_recompute = len(self._modes.layers) == shape.layers
        if checkpointing in (True, "offload") and not can_recompute:
            raise RunError(
                ErrorCode.RECIPE_INVALID,
                f"recipe.gradient_checkpointing={checkpointing!r}: {type(model).__name__} has no "
                "layers that can be recomputed.",
                hint="Leave it at 'auto'.",
                param="recipe.gradient_checkpointing",
            )
        tuning = read_tuning(model, shape, full=full, precision=precision)
        self._step = trainer.longest_step()
        self._ours = mechanisms_of(patched, shape.layers)
        on_gpu = self._device.type == "cuda"
        batch, engine = self._of(layouts.chosen, on_gpu=on_gpu)
        self.planner = Planner(
            shape=shape,
            tuning=tuning,
            batch=batch,
            engine=engine,
            memory=read_free_memory(self._device, tuning.weights + tuning.adapter),
            checkpointing=checkpointing,
            may_split=may_split,
            can_recompute=can_recompute,
            speed=measure_speed(self._device) if on_gpu else None,
        )
        self._host_peak: HostPeak | None = None
        self.steps: StepRetry

    def resolve(self) -> None:
        """The plan, tried on the longest micro-batch and in force."""
        earlier = self._choices.earlier(NAME)
        policy = stored_policy(earlier, self.planner.shape.layers)
        first = policy or self.planner.choose().policy
        self.steps = StepRetry(self._trainer, self._modes, first, self._replan)
        self._trainer.memory = self.steps
        self._trainer.evaluation_memory = EvaluationRetry(
            partial(self._events.message, level="warn")
        )
        self.planner = replace(self.planner, correction=self._corrected(*self._probe()))
        option = self.planner.option(self.steps.policy)
        if policy is None:
            option = self._choose_again(option)
        self.steps.apply(option.policy)
        self._choices.add(to_choice(self.planner, option, summary(self.planner, option)))
        self._rule_out_layouts()
        if self.planner.checkpointing == "offload" and not self.planner.engine.on_gpu:
            self._events.message(
                "gradient_checkpointing='offload' on a CPU: its memory is the host's, so layers "
                "recompute and nothing is offloaded."
            )

    def training_started(self) -> None:
        """The peak counts from here: what was tried and checked before is over."""
        if self.planner.engine.on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._host_peak = HostPeak()

    @property
    def recomputes(self) -> bool:
        """Whether any layer does."""
        return self.steps.policy.keep < self.planner.shape.layers

    def layer_counters(self) -> LayerCounters:
        """For the run report; follow the plan when it changes."""
        return LayerCounters(
            planned=self.steps.planned,
            recomputes=lambda: [counts.recomputes for counts in self._modes.counts],
            offloads=lambda: [counts.offloads for counts in self._modes.counts],
        )

    def report(self) -> None:
        """After training: the peak that was against the one predicted for the largest micro-batch
        there was, and what the layers did against the plan."""
        if self.steps.largest is None:
            return
        planner, seen = self.planner, self.steps.largest
        engine = replace(planner.engine, ours=self._ours_in(padded=seen.padded))
        share = planner.batch.labelled / planner.batch.tokens
        batch = replace(seen, labelled=max(1, round(seen.tokens * share)))
        whole = replace(self.steps.policy, parts=1)  # what was seen is split already
        found = replace(planner, batch=batch, engine=engine).option(whole).prediction
        real, how = self._real_peak()
        predicted = found.peak if planner.engine.on_gpu else self._growth(found.peak)
        deviations = self._modes.deviations()
        data: dict[str, JsonValue] = {
            "predicted_peak_bytes": predicted,
            "real_peak_bytes": real,
            "measured_as": how,
            "largest_micro_batch_tokens": seen.tokens,
            "layers": [asdict(counts) for counts in self._modes.counts],
        }
        text = f"Memory at the peak: {format_bytes(predicted)} predicted"
        if real is not None:
            text += f", {format_bytes(real)} {how}"
            if predicted >= _TELLING:
                text += f" ({real / predicted - 1:+.0%})"
        self._events.message(text, data=data)
        for deviation in deviations:
            self._events.message(f"Recomputation is not as planned: {deviation}.", level="warn")

    def _of(self, layout: Layout, *, on_gpu: bool) -> tuple[MicroBatch, Engine]:
        """The longest micro-batch of the longest step, and who computes it."""
        batches = self._trainer.micro_batches(self._step, layout)
        sizes = [self._trainer.describe(one, count_labels=True) for one in batches]
        batch = max(sizes, key=lambda one: one.tokens)
        if layout.rows is not None:  # of packs, which are not taken apart
            batch = replace(batch, rows=min(batch.rows, layout.rows))
        ours = self._ours_in(padded=batch.padded)
        return batch, Engine(ours=ours, on_gpu=on_gpu, passes=len(batches))

    def _ours_in(self, *, padded: bool) -> frozenset[str]:
        """A batch with a mask runs through the model's own layers."""
        return self._ours & {"loss"} if padded else self._ours

    def _rule_out_layouts(self) -> None:
        """Layouts that are yet to be tried, and would not fit."""
        for name, layout in self._layouts.untried.items():
            batch, engine = self._of(layout, on_gpu=self.planner.engine.on_gpu)
            one = replace(self.planner, batch=batch, engine=engine)
            option = one.option(replace(self.steps.policy, parts=1))
            if not option.fits:
                peak, budget = option.prediction.peak, self.planner.memory.budget
                reason = (
                    f"would take {format_bytes(peak)} of {format_bytes(budget)} that may be used"
                )
                self._layouts.rule_out(name, reason)
                self._events.message(f"{name} micro-batches are not tried: they {reason}.")

    def _probe(self) -> tuple[Probe, MicroBatch]:
        """Of the longest micro-batch under the policy, or of as much of it as the trainer finds
        enough, and what that was; less is tried where it does not fit."""
        trainer = self._trainer
        while True:
            batches = trainer.micro_batches(self._step, self._layouts.chosen)
            longest = max(batches, key=lambda one: trainer.describe(one).tokens)
            batch = trainer.probe_batch(longest)
            tried = self.planner.batch.part(self.steps.policy.parts)
            if batch is not longest:
                tried = trainer.describe(batch, count_labels=True)
            try:
                loss_of = partial(trainer.probe_loss, batch, self.planner.batch.labelled)
                return run_probe(trainer.model, self._modes.layers, loss_of), tried
            except Exception as error:  # out of memory comes as many types; others go on
                if not is_out_of_memory(error):
                    raise
                failure = first_line(error)
            self.steps.recover(failure)

    def _corrected(self, probe: Probe, batch: MicroBatch) -> Correction:
        """`batch`: what was probed."""
        planner, policy = self.planner, self.steps.policy
        engine = replace(planner.engine, passes=1)  # the probe's gradients are the first ones
        expected = layer_kept(planner.shape, planner.tuning, batch, engine)
        keeping = probe.kept[len(probe.kept) - policy.keep :] if policy.keep else ()
        kept = sum(keeping) / len(keeping) / expected if keeping else 1.0
        bare = replace(planner.tuning, weights=0, adapter=0, optimizer_bytes=0.0)
        one = replace(policy, parts=1)

        def peak(workspace: float) -> int:
            correction = Correction(kept=kept, workspace=workspace)
            return predict(planner.shape, bare, batch, engine, one, correction).peak

        low, high = 0.25, 4.0  # the peak grows with it: where it meets what was measured
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (middle, high) if peak(middle) < probe.peak else (low, middle)
        share = batch.tokens / planner.batch.part(policy.parts).tokens
        allocator = round(probe.allocator / share)
        return Correction(kept=kept, workspace=(low + high) / 2, allocator=allocator)

    def _choose_again(self, tried: Option) -> Option:
        """By what was measured. What has failed is not gone back to."""
        chosen = self.planner.choose()
        failed = self._failed
        if failed is not None and chosen.policy.keep >= failed.keep and tried.fits:
            return tried
        return chosen

    _failed: Policy | None = None

    def _replan(self, failure: str) -> Policy:
        failed = self.steps.policy
        struck = self._layouts.give_up(failure)
        if struck is not None:  # the others need no less memory for it
            self._events.message(f"{struck}. The step begins again.", level="warn")
            return failed
        policy = self.planner.after_out_of_memory(failed)
        self._failed = failed
        rows = self.planner.batch.rows
        if policy is None:
            raise RunError(
                ErrorCode.OUT_OF_MEMORY,
                f"Out of memory with one row at a time ({self.planner.batch.longest:,} tokens) and "
                f"{'no layer' if failed.keep else 'every layer'} recomputed: {failure}",
                category=ErrorCategory.OUT_OF_MEMORY,
                hint="Set a lower recipe.max_seq_length, use a smaller model"
                + (
                    ", or recipe.gradient_checkpointing='auto'."
                    if self.planner.checkpointing is False
                    else "."
                ),
            )
        option = self.planner.option(policy)
        done = describe_change(failed, policy, rows)
        self._events.message(
            f"Out of memory ({failure}): {done}. The batch of a step stays as it was and so does "
            "the optimiser; the step begins again.",
            level="warn",
            data={"from": policy_json(failed), "to": policy_json(policy), "failure": failure},
        )
        if any(choice.name == NAME for choice in self._choices.made):
            self._choices.replace(to_choice(self.planner, option, f"out of memory: {done}"))
            self._write()
        return policy

    def _real_peak(self) -> tuple[int | None, str]:
        if self.planner.engine.on_gpu:
            return torch.cuda.max_memory_allocated(self._device), "allocated on the GPU"
        assert self._host_peak is not None
        return self._host_peak.growth(), "of resident memory above what was there before training"

    def _growth(self, peak: int) -> int:
        return peak - self.planner.tuning.weights - self.planner.tuning.adapter


def mechanisms_of(patched: PatchReport | None, layers: int) -> frozenset[str]:
    """Mechanisms that are in every layer."""
    if patched is None:
        return frozenset()
    wanted = {"attention_block": layers, "mlp_block": layers, "attention": layers, "loss": 1}
    return frozenset(name for name, count in wanted.items() if patched.counts[name] >= count)
