"""The memory plan in words, and as a choice of plan.json."""

from __future__ import annotations

from typing import cast

from pydantic import JsonValue

from tunesmith_schema import Choice

from .choose import Option, Planner
from .estimate import Policy

NAME = "memory_plan"
"""Of the choice. Its value is the policy, its figures are all else."""


def to_choice(planner: Planner, option: Option, reason: str) -> Choice:
    """With the prediction item by item, and the alternatives."""
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
            {"name": one.name, **policy_json(one.policy), **_option_json(one)}
            for one in planner.alternatives()
        ],
    }
    value: JsonValue = policy_json(policy)
    return Choice(
        name=NAME, value=value, reason=reason, figures=cast(dict[str, JsonValue], figures)
    )


def summary(planner: Planner, option: Option) -> str:
    """What was chosen, why, and what else there was."""
    layers, policy = planner.shape.layers, option.policy
    modes = [policy.mode_of(layer, layers) for layer in range(layers)]
    parts = [f"{modes.count(mode)} layers {mode}" for mode in dict.fromkeys(reversed(modes))]
    if policy.parts > 1:
        parts.append(f"micro-batches in {policy.parts} parts")
    budget = planner.memory.budget
    peak = option.prediction.peak
    why = f"predicted peak {format_bytes(peak)} of {format_bytes(budget)} that may be used"
    if planner.checkpointing != "auto":
        why += f", as recipe.gradient_checkpointing={planner.checkpointing!r} says"
    if not option.fits:
        why += "; it may not fit"
    others = ", ".join(
        f"{one.name} {format_bytes(one.prediction.peak)} at {one.cost:.2f}x the time"
        for one in planner.alternatives()
    )
    return f"{', '.join(parts)}: {why} (all layers: {others})"


def describe_change(failed: Policy, policy: Policy, rows: int) -> str:
    """What is done about a failure; `rows`: of an undivided micro-batch."""
    if policy.parts != failed.parts:
        return f"micro-batches of {-(-rows // policy.parts)} rows, {policy.parts} times as many"
    if policy.offload != failed.offload:
        return f"the inputs of {policy.offload} recomputed layers go to the host's memory"
    return f"{policy.keep} layers keep their activations instead of {failed.keep}"


def stored_policy(choice: Choice | None, layers: int) -> Policy | None:
    """What an earlier attempt has settled, if it is of this model."""
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
    """Of bytes."""
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def _option_json(option: Option) -> dict[str, JsonValue]:
    return {
        "predicted_peak_bytes": option.prediction.peak,
        "predicted_cost": round(option.cost, 3),
        "pinned_host_bytes": option.prediction.pinned_host,
        "fits": option.fits,
    }
