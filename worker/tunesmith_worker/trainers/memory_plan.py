"""Settles the memory of a run before its first step, and says at the end how it was.

The closed form chooses, the longest micro-batch that the data can make is run once as chosen, what
it held corrects the closed form, and that chooses again. The choice, what else there was and the
predicted peak are one choice of plan.json, `memory_plan`, which a resumed run takes over.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from pydantic import JsonValue

from tunesmith_schema import ErrorCategory, ErrorCode

from ..errors import RunError, is_out_of_memory
from ..events import EventLog
from ..patches.recompute import LayerModes
from ..patches.report import PatchReport
from ..plan import Choices, Precision
from ..plan.memory import Correction, Policy, layer_kept, predict
from ..plan.policy import Given, Option, Planner
from ..plan.probe import Probe, run_probe
from ..plan.reading import read_tuning
from ..plan.room import HostPeak, find_room, measure_speed
from ..plan.saturation import of_passes
from ..plan.shapes import Engine, shape_of
from .micro_batches import Batch, split
from .step_memory import StepMemory, describe

Untyped = Any  # Any: transformers and TRL are not typed
NAME = "memory_plan"
_MIB = 2**20
_TELLING = 256 * _MIB
"""A smaller peak says little beside what a process needs anyway."""


class MemoryPlan:
    """One run's: settle it, train, then report."""

    def __init__(
        self,
        trainer: Untyped,
        patched: PatchReport | None,
        *,
        given: Given,
        may_split: bool,
        full: bool,
        precision: Precision,
        choices: Choices,
        events: EventLog,
        write: Callable[[], None],
    ) -> None:
        """`given`: recipe.gradient_checkpointing; `may_split`: the user has not said how many rows
        a micro-batch has; `write` writes plan.json."""
        self._trainer, self._events = trainer, events
        self._choices, self._write = choices, write
        model = trainer.model
        self._modes = LayerModes(model)
        self._device: torch.device = trainer.args.device
        shape = shape_of(model.config)
        can_recompute = len(self._modes.layers) == shape.layers
        if given in (True, "offload") and not can_recompute:
            raise RunError(
                ErrorCode.RECIPE_INVALID,
                f"recipe.gradient_checkpointing={given!r}: {type(model).__name__} has no layers "
                "that can be recomputed.",
                hint="Leave it at 'auto'.",
                param="recipe.gradient_checkpointing",
            )
        tuning = read_tuning(model, shape, full=full, bf16=precision == "bf16")
        self._longest = _longest_batch(trainer)
        on_gpu = self._device.type == "cuda"
        self.planner = Planner(
            shape=shape,
            tuning=tuning,
            batch=describe(self._longest, count_labels=True),
            engine=Engine(
                ours=_ours(patched, shape.layers),
                on_gpu=on_gpu,
                passes=trainer.args.gradient_accumulation_steps,
            ),
            room=find_room(self._device, tuning.weights + tuning.adapter),
            given=given,
            may_split=may_split,
            can_recompute=can_recompute,
            speed=measure_speed(self._device) if on_gpu else None,
        )
        self._host_peak: HostPeak | None = None
        self.steps: StepMemory

    def settle(self) -> None:
        """The plan, tried on the longest micro-batch and in force."""
        trainer = self._trainer
        self._host_peak = None if self.planner.engine.on_gpu else HostPeak()
        earlier = _policy_of(self._choices.earlier(NAME), self.planner.shape.layers)
        policy = earlier or self.planner.choose().policy
        self.steps = StepMemory(trainer, self._modes, policy, self._replan)
        probe = self._probe()
        self.planner = replace(self.planner, correction=self._corrected(probe))
        option = self.planner.option(self.steps.policy)
        if earlier is None:
            option = self._choose_again(option)
        self.steps.apply(option.policy)
        self._choices.settle(NAME, "auto", self._as_json(option), self._sentence(option))
        if self.planner.given == "offload" and not self.planner.engine.on_gpu:
            self._events.message(
                "gradient_checkpointing='offload' on a CPU: its memory is the host's, so layers "
                "recompute and nothing is offloaded."
            )
        trainer.memory = self.steps
        if self.planner.engine.on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)

    def report(self) -> None:
        """After training: the peak that was against the one predicted for the largest micro-batch
        there was, what the layers did against the plan, and whether more rows would help."""
        if self.steps.largest is None:
            return
        planner, seen = self.planner, self.steps.largest
        share = planner.batch.labelled / planner.batch.tokens
        batch = replace(seen, labelled=max(1, round(seen.tokens * share)))
        whole = replace(self.steps.policy, parts=1)  # what was seen is split already
        found = replace(planner, batch=batch).option(whole).prediction
        real, how = self._real_peak()
        predicted = found.peak if planner.engine.on_gpu else self._growth(found.peak)
        surprises = self._modes.surprises()
        data: dict[str, JsonValue] = {
            "predicted_peak_bytes": predicted,
            "real_peak_bytes": real,
            "measured_as": how,
            "largest_micro_batch_tokens": seen.tokens,
            "layers": [
                {
                    "mode": counts.mode,
                    "forwards": counts.forwards,
                    "recomputes": counts.recomputes,
                    "offloads": counts.offloads,
                }
                for counts in self._modes.counts
            ],
        }
        text = f"Memory at the peak: {_size(predicted)} predicted"
        if real is not None:
            text += f", {_size(real)} {how}"
            if predicted >= _TELLING:
                text += f" ({real / predicted - 1:+.0%})"
        speed = of_passes(self.steps.passes())
        if speed is not None:
            data |= {"gain_of_twice_the_rows": round(speed.gain, 4), "saturated": speed.saturated}
            text += ". " + speed.sentence("GPU" if planner.engine.on_gpu else "CPU")
        self._events.message(text, data=data)
        for surprise in surprises:
            self._events.message(f"Recomputation is not as planned: {surprise}.", level="warn")

    def _probe(self) -> Probe:
        """Of the longest micro-batch as the policy splits it; less is tried where it does not
        fit."""
        while True:
            policy = self.steps.policy
            parts = split(self._longest, policy.parts) if policy.parts > 1 else [self._longest]
            batch = max(parts, key=lambda one: one["input_ids"].numel())
            failure = None
            try:
                loss_of = partial(self._loss, batch)
                return run_probe(self._trainer.model, self._modes.layers, loss_of)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failure = str(error).partition("\n")[0] or type(error).__name__
            self.steps.free()
            self.steps.apply(self._replan(failure))

    def _loss(self, batch: Batch) -> torch.Tensor:
        trainer = self._trainer
        inputs = trainer._prepare_inputs(dict(batch))
        with trainer.accelerator.autocast():
            outputs = trainer.model(**inputs, use_cache=False, fused_lm_head=True)
        loss: torch.Tensor = -outputs.log_probs.sum() / self.planner.batch.labelled
        return loss

    def _corrected(self, probe: Probe) -> Correction:
        planner, policy = self.planner, self.steps.policy
        engine = replace(planner.engine, passes=1)  # the probe's gradients are the first ones
        batch = planner.batch.part(policy.parts)
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
        return Correction(kept=kept, workspace=(low + high) / 2)

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
                    if self.planner.given is False
                    else "."
                ),
            )
        option = self.planner.option(policy)
        done = _difference(failed, policy, rows)
        self._events.message(
            f"Out of memory ({failure}): {done}. The batch of a step stays as it was and so does "
            "the optimiser; the step begins again.",
            level="warn",
            data={"from": _policy_json(failed), "to": _policy_json(policy), "failure": failure},
        )
        if any(choice.name == NAME for choice in self._choices.made):
            self._choices.revise(NAME, self._as_json(option), f"out of memory: {done}")
            self._write()
        return policy

    def _real_peak(self) -> tuple[int | None, str]:
        if self.planner.engine.on_gpu:
            return torch.cuda.max_memory_allocated(self._device), "allocated on the GPU"
        assert self._host_peak is not None
        return self._host_peak.growth(), "of resident memory above what was there before training"

    def _growth(self, peak: int) -> int:
        return peak - self.planner.tuning.weights - self.planner.tuning.adapter

    def _as_json(self, option: Option) -> JsonValue:
        room, rows = self.planner.room, self.planner.batch.part(option.policy.parts).rows
        passes = self.planner.engine.passes * option.policy.parts
        value = {
            **_policy_json(option.policy),
            "rows": rows,
            "passes": passes,
            "longest_micro_batch_tokens": self.planner.batch.part(option.policy.parts).tokens,
            **_option_json(option),
            "by_layer": list(option.prediction.by_layer),
            "items": dict(option.prediction.items),
            "moment": option.prediction.moment,
            "free_bytes": room.free,
            "budget_bytes": room.budget,
            "corrections": {
                "kept": round(self.planner.correction.kept, 4),
                "workspace": round(self.planner.correction.workspace, 4),
            },
            "alternatives": [
                {"name": one.name, **_policy_json(one.policy), **_option_json(one)}
                for one in self.planner.alternatives()
            ],
        }
        return cast(JsonValue, value)

    def _sentence(self, option: Option) -> str:
        layers, policy = self.planner.shape.layers, option.policy
        counts = [policy.of(layer, layers) for layer in range(layers)]
        parts = [
            f"{counts.count(mode)} layers {verb}"
            for mode, verb in (("keep", "keep"), ("recompute", "recompute"), ("offload", "offload"))
            if mode in counts
        ]
        peak, budget = option.prediction.peak, self.planner.room.budget
        why = f"predicted peak {_size(peak)} of {_size(budget)} that may be used"
        if self.planner.given != "auto":
            why += f", as recipe.gradient_checkpointing={self.planner.given!r} says"
        if not option.fits:
            why += "; it may not fit"
        others = ", ".join(
            f"{one.name} {_size(one.prediction.peak)} at {one.cost:.2f}x the time"
            for one in self.planner.alternatives()
        )
        rows = f", rows split into {policy.parts} parts" if policy.parts > 1 else ""
        return f"{', '.join(parts)}{rows}: {why} (all layers: {others})"


def _longest_batch(trainer: Untyped) -> Batch:
    """The micro-batch of the longest rows, the worst that chance can draw."""
    rows = min(trainer.args.per_device_train_batch_size, len(trainer.train_dataset))
    lengths = []
    for table in trainer.train_dataset.with_format("arrow").iter(10_000):
        ids = table["input_ids"]
        lengths += ids.combine_chunks().value_lengths().to_pylist()
    longest = heapq.nlargest(rows, range(len(lengths)), key=lengths.__getitem__)
    dataset = trainer.train_dataset
    batch: Batch = trainer.data_collator([dataset[index] for index in longest])
    return batch


def _ours(patched: PatchReport | None, layers: int) -> frozenset[str]:
    """Mechanisms that are in every layer."""
    if patched is None:
        return frozenset()
    wanted = {"attention_block": layers, "mlp_block": layers, "attention": layers, "loss": 1}
    return frozenset(name for name, count in wanted.items() if patched.counts[name] >= count)


def _policy_of(value: JsonValue, layers: int) -> Policy | None:
    """What an earlier attempt has settled, if it is of this model."""
    if not isinstance(value, dict):
        return None
    keep, offload, parts = (value.get(name) for name in ("keep", "offload", "parts"))
    if not (isinstance(keep, int) and isinstance(offload, int) and isinstance(parts, int)):
        return None
    return Policy(keep=keep, offload=offload, parts=parts) if keep + offload <= layers else None


def _policy_json(policy: Policy) -> dict[str, JsonValue]:
    return {"keep": policy.keep, "offload": policy.offload, "parts": policy.parts}


def _option_json(option: Option) -> dict[str, JsonValue]:
    return {
        "predicted_peak_bytes": option.prediction.peak,
        "predicted_cost": round(option.cost, 3),
        "pinned_host_bytes": option.prediction.pinned_host,
        "fits": option.fits,
    }


def _difference(failed: Policy, policy: Policy, rows: int) -> str:
    if policy.parts != failed.parts:
        return f"micro-batches of {-(-rows // policy.parts)} rows, {policy.parts} times as many"
    if policy.offload != failed.offload:
        return f"the inputs of {policy.offload} recomputed layers go to the host's memory"
    return f"{policy.keep} layers keep their activations instead of {failed.keep}"


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / _MIB:.0f} MiB"
