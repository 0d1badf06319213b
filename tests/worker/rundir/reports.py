"""Reports with chosen figures."""

from __future__ import annotations

from typing import Any

from tunesmith_schema import (
    Advice,
    Bound,
    BoundBy,
    Choice,
    PeakMemory,
    Rollouts,
    RunReport,
    Saturation,
    Throughput,
    TrainingSettings,
)

NOT_MEASURED = Saturation(state="not_measured", text="not measured")
GPU = PeakMemory(allocated=20 * 2**30, reserved=30 * 2**30, device_total=140 * 2**30)


def planned(*, fits: bool, reason: str = "as the recipe says") -> list[Choice]:
    """Return the choice that all layers recompute. Keeping them needs 10 GiB and 3/4 of the
    time."""
    keep = {"name": "keep", "predicted_peak_bytes": 10 * 2**30, "predicted_cost": 1.0, "fits": fits}
    figures: dict[str, Any] = {
        "predicted_cost": 4 / 3,
        "budget_bytes": (12 if fits else 9) * 2**30,
        "alternatives": [keep],
    }
    return [Choice(name="memory_plan", value=None, reason=reason, figures=figures)]


def rollouts(**changes: Any) -> Rollouts:
    """Make the rollout figures of a run of 100 steps with 128 completions each. Most of them give a
    training signal."""
    fields: dict[str, Any] = {
        "rounds": 100,
        "num_iterations": 1,
        "completions": 12_800,
        "generated_tokens": 640_000,
        "tokens_per_second": 6_400.0,
        "decode_steps": 12_000,
        "mean_length": 50.0,
        "longest": 120,
        "truncated_share": 0.1,
        "zero_std_share": 0.2,
        "layout": "shared",
        "token_ratio": 2.5,
        "weights": "merged",
    }
    return Rollouts(**fields | changes)


def report(**changes: Any) -> RunReport:
    """Make the report of an efficient run of 100 steps and 100 s. `phases` replace its default
    phases."""
    phases = {"import": 4.0, "data_wait": 1.0, "forward": 30.0, "backward": 60.0, "optimizer": 3.0}
    phases |= changes.pop("phases", {})
    wall = sum(phases.values())
    settings = TrainingSettings(
        tuning="lora",
        precision="bf16",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        packing=False,
        layout="padding_free",
        gradient_checkpointing=False,
        logging_steps=1,
        eval_steps=10,
        save_steps=10,
    ).model_copy(update=changes.pop("settings", {}))
    padding = changes.pop("padding_share", 0.0)
    fields: dict[str, Any] = {
        "attempt": 1,
        "started_at": 0.0,
        "wall_seconds": wall,
        "phases": phases,
        "steps": 100,
        "total_steps": 100,
        "settings": settings,
        "throughput": Throughput(seconds=90.0, padding_share=padding, slots=1000),
        "bound": Bound(by=BoundBy.UNKNOWN, text=""),
        "saturation": NOT_MEASURED,
        "advice": Advice(rule="none", text=""),
    }
    return RunReport(**fields | changes)
