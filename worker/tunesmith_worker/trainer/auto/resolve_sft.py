"""Resolve the "auto" values of a recipe into plans with concrete values.

Each resolved value is recorded as a `Choice` with its reason.
"""

from __future__ import annotations

import math

from tunesmith_schema import Auto, ErrorCode, Hyperparameters, PatchName, Precision, Recipe
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices, DataPlan, Device, LoadPlan, TrainPlan


def plan_load(recipe: Recipe, device: Device, choices: Choices) -> LoadPlan:
    bf16 = device.is_gpu and device.has_bf16
    in_bf16: Precision = "bf16_split_master" if recipe.tuning == "full" else "bf16"
    return LoadPlan(
        precision=choices.resolve(
            "precision",
            recipe.precision,
            in_bf16 if bf16 else "fp32",
            f"{device.name} {'has' if bf16 else 'is not a GPU with'} bf16",
        ),
    )


def plan_patches(recipe: Recipe, choices: Choices) -> frozenset[PatchName]:
    """Return the kernels to patch into the model."""
    if recipe.patches == "off":
        return frozenset()
    every: list[PatchName] = ["attention", "attention_block", "loss", "mlp_block"]
    names = choices.resolve("patches", recipe.patches, every, "all kernels that support the model")
    return frozenset(names)


def plan_data(recipe: Recipe, context: int | None, choices: Choices) -> DataPlan:
    """`context`: the model's context in tokens; None if the model's configuration has no
    context."""
    length = choices.resolve(
        "max_seq_length",
        recipe.max_seq_length,
        min(context or 2048, 2048),
        f"the model's context, at most 2,048 tokens; the context is {context or 'unknown'}",
    )
    check_length(length, context)
    return DataPlan(
        max_seq_length=length,
        overlong=recipe.overlong,
        assistant_only_loss=choices.resolve(
            "assistant_only_loss",
            recipe.assistant_only_loss,
            True,
            "train on the assistant's tokens, not on the prompt",
        ),
        packing=recipe.packing is True,
        context=context,
    )


def check_length(length: int, context: int | None) -> None:
    """Raise RunError if `length` exceeds the model's context."""
    if context is not None and length > context:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.max_seq_length={length} is more than the model's context of {context} tokens: "
            f"set it to {context} or less.",
            hint="With 'auto', the length is the model's context, but at most 2,048.",
            param="recipe.max_seq_length",
        )


def plan_train(
    recipe: Recipe,
    hyperparameters: Hyperparameters,
    *,
    rows: int,
    sequences: int,
    has_validation: bool,
    choices: Choices,
) -> TrainPlan:
    """`rows`: number of training rows. `sequences`: number of sequences after packing."""
    per_device, accumulation = _batch(recipe, hyperparameters, sequences, choices)
    steps_per_epoch = math.ceil(math.ceil(sequences / per_device) / accumulation)
    return plan_schedule(
        recipe,
        hyperparameters,
        rows=rows,
        batch=(per_device, accumulation),
        steps_per_epoch=steps_per_epoch,
        default_rate=_default_rate(recipe),
        has_validation=has_validation,
        choices=choices,
    )


def plan_schedule(
    recipe: Recipe,
    hyperparameters: Hyperparameters,
    *,
    rows: int,
    batch: tuple[int, int],
    steps_per_epoch: int,
    default_rate: tuple[float, str],
    has_validation: bool,
    choices: Choices,
) -> TrainPlan:
    """Resolve the settings that SFT and GRPO have in common.

    `rows`: number of data rows, which determines the default number of epochs. `batch`: number of
    rows per forward pass, and number of forward passes per optimiser step. `default_rate`: default
    learning rate, and the name of the kind of training that has this default."""
    per_device, accumulation = batch
    total = _total_steps(recipe, hyperparameters, rows, steps_per_epoch, choices)
    return TrainPlan(
        learning_rate=_learning_rate(recipe, hyperparameters, default_rate, choices),
        lr_scheduler_type=choices.resolve(
            "lr_scheduler_type",
            recipe.lr_scheduler_type,
            "linear",
            "linear decay to zero",
        ),
        warmup_steps=choices.resolve(
            "warmup_steps", recipe.warmup_steps, total * 3 // 100, f"3 % of {total} steps"
        ),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=accumulation,
        total_steps=total,
        logging_steps=recipe.logging_steps,
        eval_steps=_eval_steps(recipe, total, choices) if has_validation else None,
        save_steps=_save_steps(recipe, steps_per_epoch, total, choices),
    )


def _batch(
    recipe: Recipe, hyperparameters: Hyperparameters, sequences: int, choices: Choices
) -> tuple[int, int]:
    rows, passes = recipe.per_device_train_batch_size, recipe.gradient_accumulation_steps
    batch = hyperparameters.batch_size
    target = min(16, max(1, sequences // 16)) if batch == "auto" else batch
    known = (1 if rows == "auto" else rows) * (1 if passes == "auto" else passes)
    if batch != "auto" and (target % known or ("auto" not in (rows, passes) and target != known)):
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"hyperparameters.batch_size={batch} is not per_device_train_batch_size x "
            f"gradient_accumulation_steps ({rows} x {passes}): set only one of them.",
            hint="Remove hyperparameters.batch_size: the two recipe fields define the same value.",
            param="hyperparameters.batch_size",
        )
    source = (
        f"16 rows per step, fewer for small data ({sequences} sequences)"
        if batch == "auto"
        else f"hyperparameters.batch_size={batch}"
    )
    per_step = max(1, target // (1 if passes == "auto" else passes))
    per_device = choices.resolve(
        "per_device_train_batch_size",
        rows,
        _largest_divisor(per_step, at_most=8) if passes == "auto" else per_step,
        source,
    )
    accumulation = choices.resolve(
        "gradient_accumulation_steps", passes, max(1, target // per_device), source
    )
    return per_device, accumulation


def _largest_divisor(number: int, *, at_most: int) -> int:
    return max(n for n in range(1, at_most + 1) if number % n == 0)


def _total_steps(
    recipe: Recipe,
    hyperparameters: Hyperparameters,
    rows: int,
    steps_per_epoch: int,
    choices: Choices,
) -> int:
    if recipe.max_steps != "auto":
        return recipe.max_steps
    epochs: float | Auto = recipe.num_train_epochs
    if epochs == "auto" and hyperparameters.n_epochs != "auto":
        epochs = float(hyperparameters.n_epochs)
    resolved = choices.resolve(
        "num_train_epochs",
        epochs,
        3.0 if rows <= 10_000 else 1.0,
        f"3 epochs for up to 10,000 rows and 1 for more; the data have {rows} rows",
    )
    # Round before ceil: 0.1 x 30 is slightly above 3 as a float and would give 4 steps.
    return max(1, math.ceil(round(resolved * steps_per_epoch, 6)))


def _default_rate(recipe: Recipe) -> tuple[float, str]:
    if recipe.from_scratch:
        return 1e-3, "training from scratch"
    return (2e-5, "full tuning") if recipe.tuning == "full" else (2e-4, "LoRA")


def _learning_rate(
    recipe: Recipe,
    hyperparameters: Hyperparameters,
    default_rate: tuple[float, str],
    choices: Choices,
) -> float:
    rate, kind = default_rate
    factor = hyperparameters.learning_rate_multiplier
    reason = f"{rate:g} for {kind}"
    if factor != "auto":
        rate, reason = rate * factor, f"{reason}, times learning_rate_multiplier={factor:g}"
    return choices.resolve("learning_rate", recipe.learning_rate, rate, reason)


def _eval_steps(recipe: Recipe, total: int, choices: Choices) -> int:
    return choices.resolve(
        "eval_steps", recipe.eval_steps, math.ceil(total / 10), f"10 evaluations in {total} steps"
    )


def _save_steps(recipe: Recipe, steps_per_epoch: int, total: int, choices: Choices) -> int | None:
    if recipe.tuning == "full":
        return choices.resolve(
            "save_steps", recipe.save_steps, None, "no checkpoints: full weights are large"
        )
    tenth = math.ceil(total / 10)
    return choices.resolve(
        "save_steps",
        recipe.save_steps,
        max(steps_per_epoch, tenth),
        "one checkpoint per epoch, at most 10 per run",
    )
