"""Describe the memory plan as text and as a choice in plan.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from tunesmith_schema import Choice

from .choose import Option, Planner
from .estimate import Policy

NAME = "memory_plan"
"""Key of this choice in plan.json. The choice's value is the policy; the field `figures` of the
choice holds the predictions."""

TOLERANCE, TOLERANCE_BYTES = 0.10, 32 * 2**20
"""Largest accepted error of a memory prediction: a share of the measured bytes or a number of
bytes, whichever is more."""


@dataclass(frozen=True, kw_only=True)
class HeldTensors:
    """Predicted and measured bytes of tensors at a memory peak."""

    predicted: int
    measured: int
    when: str = ""
    """Part of the run that was measured, such as " in the first step"; starts with a space."""

    @property
    def within_tolerance(self) -> bool:
        error = abs(self.predicted - self.measured)
        return error <= max(TOLERANCE * self.measured, TOLERANCE_BYTES)

    def __str__(self) -> str:
        text = (
            f"{format_bytes(self.predicted)} of tensors predicted{self.when}, "
            f"{format_bytes(self.measured)} held ({self.measured / self.predicted - 1:+.0%})"
        )
        if self.within_tolerance:
            return text
        return f"{text}, an error of more than {TOLERANCE:.0%} and {format_bytes(TOLERANCE_BYTES)}"


def to_choice(planner: Planner, option: Option, reason: str) -> Choice:
    """Return the policy as an entry of plan.json, with predictions for the policy and its
    alternatives."""
    policy = option.policy
    part = planner.batch.part(policy.parts)
    figures = {
        "rows": part.rows,
        "passes": planner.engine.passes * policy.parts,
        "longest_micro_batch_tokens": part.tokens,
        **_option_json(option),
        "by_layer": list(option.prediction.by_layer),
        "items": dict(option.prediction.items),
        "moment": option.prediction.moment,
        "free_bytes": planner.memory.free,
        "budget_bytes": planner.memory.budget,
        "corrections": {
            "kept": round(planner.correction.kept, 4),
            "workspace": round(planner.correction.workspace, 4),
        },
        "alternatives": [
            {"name": option.name, **policy_json(option.policy), **_option_json(option)}
            for option in planner.alternatives()
        ],
    }
    value: JsonValue = policy_json(policy)
    return Choice(
        name=NAME, value=value, reason=reason, figures=cast(dict[str, JsonValue], figures)
    )


def summary(planner: Planner, option: Option) -> str:
    """Return one line with the chosen modes, the reason and the alternatives."""
    layers, policy = planner.shape.layers, option.policy
    modes = [policy.mode_of(layer, layers) for layer in range(layers)]
    parts = [f"{modes.count(mode)} layers {mode}" for mode in dict.fromkeys(reversed(modes))]
    if policy.parts > 1:
        parts.append(f"micro-batches in {policy.parts} parts")
    budget = planner.memory.budget
    peak = option.prediction.peak
    why = f"predicted peak {format_bytes(peak)}, limit {format_bytes(budget)}"
    if planner.checkpointing != "auto":
        why += f", set by recipe.gradient_checkpointing={planner.checkpointing!r}"
    if not option.fits:
        why += "; may run out of memory"
    alternatives = ", ".join(
        f"{option.name} {format_bytes(option.prediction.peak)} at {option.cost:.2f}x the time"
        for option in planner.alternatives()
    )
    return f"{', '.join(parts)}: {why} (all layers: {alternatives})"


def describe_change(failed: Policy, policy: Policy, rows: int) -> str:
    """Describe how `policy` differs from `failed`.

    `rows`: number of rows in a micro-batch that is not split."""
    if policy.parts != failed.parts:
        most = -(-rows // policy.parts)
        return f"each micro-batch is split into {policy.parts} parts of at most {most} rows"
    if policy.offload != failed.offload:
        return f"the inputs of {policy.offload} recomputed layers are offloaded to host memory"
    return f"{policy.keep} layers keep their activations instead of {failed.keep}"


def stored_policy(choice: Choice | None, layers: int) -> Policy | None:
    """Return the policy of an earlier attempt, or None if the policy is for a model with fewer
    layers."""
    value = None if choice is None else choice.value
    if not isinstance(value, dict):
        return None
    keep, offload, parts = (value.get(name) for name in ("keep", "offload", "parts"))
    if not (isinstance(keep, int) and isinstance(offload, int) and isinstance(parts, int)):
        return None
    return Policy(keep=keep, offload=offload, parts=parts) if keep + offload <= layers else None


def policy_json(policy: Policy) -> dict[str, JsonValue]:
    return {"keep": policy.keep, "offload": policy.offload, "parts": policy.parts}


def format_bytes(number: int) -> str:
    """Format bytes as MiB or GiB."""
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def _option_json(option: Option) -> dict[str, JsonValue]:
    return {
        "predicted_peak_bytes": option.prediction.peak,
        "predicted_cost": round(option.cost, 3),
        "pinned_host_bytes": option.prediction.pinned_host,
        "fits": option.fits,
    }
