"""Memory plan of a run. After training, the plan's prediction is compared with the measured peak.

A policy sets what each layer recomputes, and into how many parts a micro-batch is split. First, a
closed-form formula estimates the memory, and the fastest policy that fits into memory is selected.
A trial runs the longest micro-batch once under the selected policy. The memory measured in the
trial corrects the estimate, and the final policy is selected with the corrected estimate. plan.json
stores the final policy, its alternatives and the predicted peak as `memory_plan`; a resumed run
reuses `memory_plan`.
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
    HeldTensors,
    describe_change,
    format_bytes,
    policy_json,
    stored_policy,
    summary,
    to_choice,
)
from tunesmith_worker.engine.memory.estimate import (
    Correction,
    Policy,
    Prediction,
    layer_kept,
    predict,
)
from tunesmith_worker.engine.memory.free_memory import HostPeak, measure_speed, read_free_memory
from tunesmith_worker.engine.memory.model_shape import read_shape
from tunesmith_worker.engine.memory.parameter_sizes import read_tuning
from tunesmith_worker.engine.memory.probe import Probe, run_probe
from tunesmith_worker.engine.memory.recompute import LayerCounters, LayerModes
from tunesmith_worker.engine.memory.retry import EvaluationRetry, StepRetry, first_line
from tunesmith_worker.engine.memory.shapes import Engine, MicroBatch
from tunesmith_worker.engine.patches.report import PatchReport
from tunesmith_worker.rundir.errors import RunError, is_out_of_memory
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.plan import Choices

from .layout_choice import Layout
from .layouts import Layouts

Untyped = Any  # Any: transformers and TRL are not typed
_MOST_WORKSPACE = 2.0**20
"""Maximum ratio of measured to predicted bytes of temporary memory.

The ratio is large if a model has a layer that the memory formula does not describe."""


class MemoryPlan:
    """The memory plan of one run: call `resolve`, train, then call `report`.

    The class calls the trainer's methods `longest_step`, `micro_batches`, `describe`,
    `probe_batch` and `probe_loss`.
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
        """`checkpointing`: recipe.gradient_checkpointing. `may_split`: True if the user has not set
        the rows per micro-batch. `write`: function that writes plan.json."""
        self._trainer, self._layouts, self._events = trainer, layouts, events
        self._choices, self._write = choices, write
        model = trainer.model
        self._modes = LayerModes(model)
        self._device: torch.device = trainer.args.device
        shape = read_shape(model)
        can_recompute = len(self._modes.layers) == shape.layers
        if checkpointing in (True, "offload") and not can_recompute:
            raise RunError(
                ErrorCode.RECIPE_INVALID,
                f"recipe.gradient_checkpointing={checkpointing!r}: {type(model).__name__} has no "
                "layers that support recomputation.",
                hint="Leave recipe.gradient_checkpointing at 'auto'.",
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

    def measure_again(self) -> None:
        """Measure the free memory again."""
        held = self.planner.tuning.weights + self.planner.tuning.adapter
        self.planner = replace(self.planner, memory=read_free_memory(self._device, held))

    @property
    def growth(self) -> int:
        """Predicted bytes by which this process's memory grows during training."""
        return max(0, self._growth(self.planner.option(self.steps.policy).prediction.peak))

    def resolve(self) -> None:
        """Choose the policy, test this policy on the longest micro-batch, and apply it."""
        earlier = self._choices.earlier(NAME)
        policy = stored_policy(earlier, self.planner.shape.layers)
        first = policy or self.planner.choose().policy
        self.steps = StepRetry(self._trainer, self._modes, first, self._replan)
        self._trainer.memory = self.steps
        self._trainer.evaluation_memory = EvaluationRetry(
            partial(self._events.message, level="warn")
        )
        option = self._test(policy)
        if policy is None and self._layouts.has_smaller:
            option = self._smaller_layout(option)
        self.steps.apply(option.policy)
        self._choices.add(to_choice(self.planner, option, summary(self.planner, option)))
        if self.planner.checkpointing == "offload" and not self.planner.engine.on_gpu:
            self._events.message(
                "gradient_checkpointing='offload' has no effect on CPU: layers recompute instead."
            )

    def training_started(self) -> None:
        """Start to measure the peak memory of training, after the trial and the self-check have
        ended."""
        if self.planner.engine.on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._host_peak = HostPeak()

    @property
    def recomputes(self) -> bool:
        """True if any layer recomputes."""
        return self.steps.policy.keep < self.planner.shape.layers

    def layer_counters(self) -> LayerCounters:
        """Return functions that count recomputations and offloads in each layer, for the run
        report."""
        return LayerCounters(
            planned=self.steps.planned,
            recomputes=lambda: [counts.recomputes for counts in self._modes.counts],
            offloads=lambda: [counts.offloads for counts in self._modes.counts],
        )

    def report(self) -> None:
        """Report the predicted and the measured peak, and the error of the prediction.

        On a GPU, the allocator measures the tensors of the whole training. On a CPU, two values are
        measured: the tensors of the first step, and the growth of resident memory during training.
        Warn if a layer did not recompute as planned."""
        if self.steps.largest is None:
            return
        prediction, on_gpu = self._predict(self.steps.largest), self.planner.engine.on_gpu
        held = self._held_tensors()
        real, how = self._real_peak()
        predicted = prediction.peak if on_gpu else self._growth(prediction.peak)
        deviations = self._modes.deviations()
        data: dict[str, JsonValue] = {
            "predicted_peak_bytes": predicted,
            "real_peak_bytes": real,
            "measured_as": how,
            "largest_micro_batch_tokens": self.steps.largest.tokens,
            "layers": [asdict(counts) for counts in self._modes.counts],
        }
        parts = []
        if held is not None:
            data |= {
                "predicted_tensor_bytes": held.predicted,
                "tensor_bytes": held.measured,
                "within_tolerance": held.within_tolerance,
            }
            parts.append(str(held))
        if not on_gpu and real is not None:
            parts.append(
                f"resident memory grew by {format_bytes(real)} in training, "
                f"{format_bytes(predicted)} predicted"
            )
        self._events.message(f"Peak memory: {'; '.join(parts) or 'not measured'}", data=data)
        for deviation in deviations:
            self._events.message(f"Recomputation is not as planned: {deviation}.", level="warn")

    def _predict(self, seen: MicroBatch) -> Prediction:
        planner = self.planner
        engine = replace(planner.engine, ours=self._ours_in(padded=seen.padded))
        share = planner.batch.labelled / planner.batch.tokens
        batch = replace(seen, labelled=max(1, round(seen.tokens * share)))
        whole = replace(self.steps.policy, parts=1)  # `seen` is already a part of a split batch
        return replace(planner, batch=batch, engine=engine).option(whole).prediction

    def _held_tensors(self) -> HeldTensors | None:
        tuning, first = self.planner.tuning, self.steps.first_step
        if self.planner.engine.on_gpu:
            assert self.steps.largest is not None, "a step ran"
            measured = torch.cuda.max_memory_allocated(self._device)
            predicted = self._predict(self.steps.largest).tensors
            return HeldTensors(predicted=predicted, measured=measured)
        if first is None:
            return None
        return HeldTensors(
            predicted=self._predict(first.largest).tensors,
            measured=tuning.weights + tuning.adapter + first.growth,
            when=" in the first step",
        )

    def _of(self, layout: Layout, *, on_gpu: bool) -> tuple[MicroBatch, Engine]:
        batches = self._trainer.micro_batches(self._step, layout)
        sizes = [self._trainer.describe(item, count_labels=True) for item in batches]
        batch = max(sizes, key=lambda size: size.tokens)
        if layout.rows is not None:  # a pack of rows cannot be split
            batch = replace(batch, rows=min(batch.rows, layout.rows))
        ours = self._ours_in(padded=batch.padded)
        return batch, Engine(ours=ours, on_gpu=on_gpu, passes=len(batches))

    def _ours_in(self, *, padded: bool) -> frozenset[str]:
        """Return the names of our kernels that run on a batch. If the batch is padded, the layers
        use stock code, and only the loss head is ours."""
        return self._ours & {"loss"} if padded else self._ours

    def _test(self, policy: Policy | None) -> Option:
        """Run a trial micro-batch and correct the memory estimate. Return the policy to use, with
        its prediction.

        `policy`: policy to keep; None to select a policy again with the corrected estimate."""
        probe, probed = self._probe()  # if memory runs out, this replaces self.planner
        self.planner = replace(self.planner, correction=self._corrected(probe, probed))
        option = self.planner.option(self.steps.policy)
        return option if policy is not None else self._choose_again(option)

    def _smaller_layout(self, option: Option) -> Option:
        """Switch to the layout that needs less memory, if a policy with this layout recomputes less
        or splits micro-batches less. Recomputing less saves more time than the present, faster
        layout saves.

        Returns the policy to use, with its prediction."""
        layers = self.planner.shape.layers
        plain = self.planner.option(Policy(keep=layers))
        before, self.planner = self.planner, self._planner_of(self._layouts.smaller)
        smaller = self.planner.choose()
        if _rank(smaller) <= _rank(option):
            self.planner = before
            return option
        needed, budget = plain.prediction.peak, before.memory.budget
        message = self._layouts.use_smaller(
            f"needs {format_bytes(needed)}, but the budget is {format_bytes(budget)}"
        )
        self._events.message(message)
        self.steps.apply(smaller.policy)
        return self._test(None)

    def _planner_of(self, layout: Layout) -> Planner:
        batch, engine = self._of(layout, on_gpu=self.planner.engine.on_gpu)
        return replace(self.planner, batch=batch, engine=engine)

    def _probe(self) -> tuple[Probe, MicroBatch]:
        """Run the longest micro-batch, or a part of it, under the current policy.

        If memory runs out, try again with a policy that needs less memory. Returns the measurements
        and the micro-batch that ran."""
        trainer = self._trainer
        while True:
            batches = trainer.micro_batches(self._step, self._layouts.chosen)
            longest = max(batches, key=lambda item: trainer.describe(item).tokens)
            batch = trainer.probe_batch(longest)
            probed = self.planner.batch.part(self.steps.policy.parts)
            if batch is not longest:
                probed = trainer.describe(batch, count_labels=True)
            try:
                loss_of = partial(trainer.probe_loss, batch, self.planner.batch.labelled)
                return run_probe(trainer.model, self._modes.layers, loss_of), probed
            except Exception as error:  # out of memory has several exception types
                if not is_out_of_memory(error):
                    raise
                failure = first_line(error)
            self.steps.recover(failure)

    def _corrected(self, probe: Probe, batch: MicroBatch) -> Correction:
        planner, policy = self.planner, self.steps.policy
        engine = replace(planner.engine, passes=1)  # the probe starts without gradients
        expected = layer_kept(planner.shape, planner.tuning, batch, engine)
        keeping = probe.kept[len(probe.kept) - policy.keep :] if policy.keep else ()
        kept = sum(keeping) / len(keeping) / expected if keeping else 1.0
        bare = replace(planner.tuning, weights=0, adapter=0, optimizer_bytes=0.0)
        unsplit = replace(policy, parts=1)

        def peak(workspace: float) -> int:
            correction = Correction(kept=kept, workspace=workspace)
            return predict(planner.shape, bare, batch, engine, unsplit, correction).peak

        low, high = 0.25, 4.0  # bisect: the peak grows with the workspace
        while peak(high) < probe.peak and high < _MOST_WORKSPACE:
            high *= 2  # layers that the formula does not describe
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (middle, high) if peak(middle) < probe.peak else (low, middle)
        share = batch.tokens / planner.batch.part(policy.parts).tokens
        allocator = round(probe.allocator / share)
        return Correction(kept=kept, workspace=(low + high) / 2, allocator=allocator)

    def _choose_again(self, tried: Option) -> Option:
        chosen = self.planner.choose()
        failed = self._failed
        if failed is not None and chosen.policy.keep >= failed.keep and tried.fits:
            return tried
        return chosen

    _failed: Policy | None = None

    def _replan(self, failure: str) -> Policy:
        failed = self.steps.policy
        if self._layouts.has_smaller:
            message = self._layouts.use_smaller(f"ran out of memory ({failure})")
            self._events.message(message, level="warn")
            self.planner = self._planner_of(self._layouts.chosen)
            self._rewrite_choice(failed, f"out of memory: {message}")
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
                hint="Lower recipe.max_seq_length, use a smaller model"
                + (
                    ", or recipe.gradient_checkpointing='auto'."
                    if self.planner.checkpointing is False
                    else "."
                ),
            )
        done = describe_change(failed, policy, rows)
        self._events.message(
            f"Out of memory ({failure}): {done}. The batch and the optimiser are unchanged; "
            "the step is repeated.",
            level="warn",
            data={"from": policy_json(failed), "to": policy_json(policy), "failure": failure},
        )
        self._rewrite_choice(policy, f"out of memory: {done}")
        return policy

    def _rewrite_choice(self, policy: Policy, reason: str) -> None:
        if any(choice.name == NAME for choice in self._choices.made):
            option = self.planner.option(policy)
            self._choices.replace(to_choice(self.planner, option, reason))
        self._write()

    def _real_peak(self) -> tuple[int | None, str]:
        if self.planner.engine.on_gpu:
            return torch.cuda.max_memory_allocated(self._device), "allocated on the GPU"
        assert self._host_peak is not None
        return self._host_peak.growth(), "of resident memory above the level before training"

    def _growth(self, peak: int) -> int:
        return peak - self.planner.tuning.weights - self.planner.tuning.adapter


def _rank(option: Option) -> tuple[bool, int, int]:
    return option.fits, option.policy.keep, -option.policy.parts


def mechanisms_of(patched: PatchReport | None, layers: int) -> frozenset[str]:
    """Return the names of the kernels that are patched into all layers."""
    if patched is None:
        return frozenset()
    required = {"attention_block": layers, "mlp_block": layers, "attention": layers, "loss": 1}
    return frozenset(name for name, count in required.items() if patched.counts[name] >= count)
