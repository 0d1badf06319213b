"""Preparation steps that supervised and GRPO runs share, after the model is loaded.

`assemble_sft.py` and `assemble_grpo.py` call the functions of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tunesmith_schema import ReinforcementHyperparameters
from tunesmith_worker.engine.model.adapters import adapter_dtype, resolve_adapter_bytes
from tunesmith_worker.engine.model.embeddings import embedding_learning_rate
from tunesmith_worker.engine.optimizers.choose import optimizer_for
from tunesmith_worker.engine.patches import Patched, patch
from tunesmith_worker.engine.patches.own_head import use_own_head
from tunesmith_worker.rundir.plan import DataPlan, TrainPlan
from tunesmith_worker.trainer.auto.device_memory import held_bytes
from tunesmith_worker.trainer.auto.layouts import Layouts
from tunesmith_worker.trainer.auto.memory_plan import MemoryPlan
from tunesmith_worker.trainer.methods.reference import AdapterReference
from tunesmith_worker.trainer.report.recorder import training_settings

from .context import RunContext
from .evaluation.evaluate import Evaluator
from .load import LoadedModel
from .outputs import Callbacks, OutputWriter
from .selfcheck.check_context import CheckContext
from .selfcheck.shadow import FirstStepShadow, RunningLook
from .selfcheck.shadow.watch import StepCheck

Untyped = Any  # Any: transformers, TRL and PEFT are not typed


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is ready for its first step."""

    trainer: Untyped
    callbacks: Callbacks
    saving: OutputWriter
    patched: Patched | None
    """Our kernels in the model; None if recipe.patches is 'off'."""
    memory: MemoryPlan
    rows_at_a_time: int
    """Rows per forward pass, shown in out-of-memory errors."""
    interruption: type[Exception] | tuple[()] = ()
    """Type of the exception that ends a step early, if a stop request comes before the optimiser
    update."""
    resources: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Context manager to keep open during training, such as the rollout runner."""
    evaluator: Evaluator | None = None
    """Evaluation of the result; None with `recipe.evaluate: false`."""
    reference: AdapterReference | None = None
    """Base model of a LoRA run, with which the evaluation compares the result."""


def warn_of_ignored_settings(context: RunContext) -> None:
    """Warn that evaluation settings are ignored without a validation file."""
    spec = context.spec
    settings = {"recipe.eval_steps": spec.recipe.eval_steps}
    if isinstance(spec.hyperparameters, ReinforcementHyperparameters):
        for name in ("eval_interval", "eval_samples"):
            settings[f"hyperparameters.{name}"] = getattr(spec.hyperparameters, name)
    for name, value in settings.items():
        if value != "auto":
            context.events.message(
                f"{name}={value}: evaluation settings are ignored without a validation file. Add a "
                "validation file to the job, or remove the setting.",
                level="warn",
            )


def resolve_update_rates(
    context: RunContext, loaded: LoadedModel, train_plan: TrainPlan
) -> dict[str, Untyped]:
    """Return the trainer's arguments for learning rates and optimizer.

    Record the adapter's file size in plan.json.
    """
    recipe, choices = context.spec.recipe, context.plan.choices
    full = recipe.tuning == "full"
    rate = embedding_learning_rate(loaded.model, recipe, train_plan.learning_rate, choices)
    if not full:
        resolve_adapter_bytes(loaded.model, adapter_dtype(recipe), choices)
    optimizer = optimizer_for(
        loaded.load_plan.precision,
        full=full,
        learning_rate=train_plan.learning_rate,
        seed=context.spec.seed,
    )
    return {"embedding_rate": rate, "optimizer_cls_and_kwargs": optimizer}


def make_output_writer(
    context: RunContext, loaded: LoadedModel, probe_ids: Sequence[int]
) -> OutputWriter:
    return OutputWriter(
        context.run,
        context.spec,
        context.events,
        context.recorder,
        loaded.model,
        loaded.base.tokenizer,
        probe_ids=probe_ids,
        with_tokenizer=bool(loaded.new_tokens.ids),
    )


def add_callbacks(
    context: RunContext,
    loaded: LoadedModel,
    saving: OutputWriter,
    trainer: Untyped,
    train_plan: TrainPlan,
) -> Callbacks:
    bf16 = loaded.load_plan.precision != "fp32"
    return saving.add_callbacks(
        trainer,
        context.control,
        context.plan,
        save_steps=train_plan.save_steps,
        lost_updates=bf16 and context.spec.recipe.tuning == "full",
    )


def patch_model(context: RunContext, loaded: LoadedModel) -> Patched | None:
    patches = loaded.patches
    causal = loaded.base.model
    if reason := use_own_head(causal):
        patches -= {"loss"}
        context.events.message(
            f"The loss uses the logits from {type(causal).__name__}.forward, because {reason}. "
            "The logits of a whole micro-batch stay in memory."
        )
    patched = patch(loaded.model, patches) if patches else None
    context.events.message(
        patched.report.summary() if patched else "no kernels patched: recipe.patches is 'off'"
    )
    return patched


def resolve_memory(
    context: RunContext,
    loaded: LoadedModel,
    trainer: Untyped,
    layouts: Layouts,
    patched: Patched | None,
) -> MemoryPlan:
    recipe = context.spec.recipe
    with context.events.phase("plan"):
        context.device_use.make_room()  # ask chat to free memory that it does not use now
        memory = MemoryPlan(
            trainer,
            layouts,
            patched.report if patched else None,
            checkpointing=recipe.gradient_checkpointing,
            may_split=recipe.per_device_train_batch_size == "auto",
            full=recipe.tuning == "full",
            precision=loaded.load_plan.precision,
            choices=context.plan.choices,
            events=context.events,
            write=context.plan.write,
        )
        if memory.planner.is_short and context.device_use.make_room(everything=True):
            memory.measure_again()
        memory.resolve()
        context.device_use.settle(held_bytes() + memory.growth)
        context.plan.write()
    return memory


def watch_first_step(
    context: RunContext, checked: CheckContext, check: StepCheck, callbacks: Callbacks
) -> None:
    """Add the self-check's callbacks: one checks the attempt's first step, the other checks later
    steps."""
    if not checked.recipe.self_check:
        return
    for kind in (FirstStepShadow, RunningLook):
        checked.trainer.add_callback(
            kind(
                checked,
                check,
                context.events,
                context.recorder,
                exclude_time=callbacks.run.exclude,
            )
        )


def evaluation_base(context: RunContext, loaded: LoadedModel) -> AdapterReference | None:
    """Return the base model of a LoRA run.

    Call this function before a training step or a resume point changes the model's biases, because
    `AdapterReference` copies the biases' initial values.
    """
    recipe = context.spec.recipe
    return AdapterReference(loaded.model) if recipe.evaluate and recipe.tuning == "lora" else None


def resume_from_point(context: RunContext, trainer: Untyped) -> None:
    """Continue from the run's resume point if the run has one."""
    point = context.point
    if point is not None:
        trainer.resume_from(point.folder, forked=context.spec.forked)


def start_recording(
    context: RunContext,
    loaded: LoadedModel,
    trainer: Untyped,
    layouts: Layouts,
    memory: MemoryPlan,
    data_plan: DataPlan,
    train_plan: TrainPlan,
) -> None:
    """Start to record measurements for the run report."""
    settings = training_settings(
        loaded.load_plan,
        data_plan,
        train_plan,
        full=context.spec.recipe.tuning == "full",
        recomputes=memory.recomputes,
    )
    context.recorder.watch(
        trainer,
        settings,
        layouts,
        device=loaded.device.name,
        choices=context.plan.choices.made,
        layers=memory.layer_counters(),
    )
