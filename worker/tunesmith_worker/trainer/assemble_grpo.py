"""Preparation of a GRPO reinforcement run, from the prompts to the first step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import datasets

from tunesmith_schema import GRPORecipe, LoraRecipe, PhaseName, RolloutRecipe
from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.engine.model.quantization import adapter_dtype_kept
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.patches.own_head import use_own_head
from tunesmith_worker.engine.rollout import Interrupted, eos_token_ids
from tunesmith_worker.engine.rollout.choose import Workload
from tunesmith_worker.rundir.plan import Choices, DataPlan
from tunesmith_worker.rundir.samples import write_samples
from tunesmith_worker.trainer.auto.layout_choice import Layout, LayoutPlan
from tunesmith_worker.trainer.auto.layouts import Layouts
from tunesmith_worker.trainer.auto.resolve_grpo import (
    GRPOPlan,
    plan_grpo,
    plan_grpo_train,
    prompt_limit,
)
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.data.prompts import read_prompts
from tunesmith_worker.trainer.methods.config import grpo_config
from tunesmith_worker.trainer.methods.engine_mismatch import resolve_mode
from tunesmith_worker.trainer.methods.grpo import GRPOTrainer
from tunesmith_worker.trainer.methods.kept_rollouts import KeptRollouts
from tunesmith_worker.trainer.methods.rollouts import RolloutRunner, rollout_failures
from tunesmith_worker.trainer.selfcheck.check_context import ReinforcementContext
from tunesmith_worker.trainer.selfcheck.rollout_checks import reinforcement_checks

from .assemble import (
    PreparedRun,
    add_callbacks,
    evaluation_base,
    make_output_writer,
    patch_model,
    resolve_memory,
    resolve_update_rates,
    resume_from_point,
    start_recording,
    warn_of_ignored_settings,
    watch_first_step,
)
from .context import RunContext
from .evaluate_run import reinforcement_evaluation
from .load import LoadedModel, train_rows
from .resume import check_steps_left
from .rewards import Grading
from .rollout_warnings import RolloutWarnings
from .run_engine import RunEngine
from .selfcheck import self_check
from .selfcheck.shadow import ReinforcementStep


def prepare_reinforcement(context: RunContext, loaded: LoadedModel) -> PreparedRun:
    run, spec, events, recorder = context.run, context.spec, context.events, context.recorder
    recipe, choices = spec.recipe, context.plan.choices
    for warning in (recipe.grpo or GRPORecipe()).warnings():
        events.message(warning, level="warn")
    base, model = loaded.base, loaded.model

    with events.phase("data"):
        limit = prompt_limit(recipe, base.context)
        prompts = read_prompts(run, spec, base, events, max_prompt_tokens=limit)
        used = {token for row in prompts.rows for token in row.prompt_ids}
        train_rows(context, loaded, sorted(used))

    recorder.clock.switch(PhaseName.PLAN)
    has_validation = prompts.validation is not None
    if not has_validation:
        warn_of_ignored_settings(context)
    plan = plan_grpo(
        recipe,
        spec.hyperparameters,
        prompts=len(prompts.rows),
        longest_prompt=prompts.longest,
        context=base.context,
        has_validation=has_validation,
        choices=choices,
    )
    train_plan = plan_grpo_train(
        recipe,
        spec.hyperparameters,
        plan,
        prompts=len(prompts.rows),
        has_validation=has_validation,
        choices=choices,
    )
    check_steps_left(context.point, train_plan.total_steps)
    rates = resolve_update_rates(context, loaded, train_plan)
    layouts = _one_layout(plan, choices)
    context.plan.write()
    recorder.clock.switch(PhaseName.SETUP)

    saving = make_output_writer(context, loaded, prompts.rows[0].prompt_ids)
    grading = Grading(
        spec.grader, context.rewards, steps=-(-train_plan.total_steps // plan.num_iterations)
    )
    with rollout_failures():
        engine = _make_engine(context, loaded, plan, prompts.longest)
    importance_sampling = resolve_mode(
        (recipe.rollout or RolloutRecipe()).importance_sampling,
        engine.name,
        plan.loss_type,
        choices,
    )
    runner = RolloutRunner(
        engine,
        base.tokenizer,
        prompts,
        grading,
        plan,
        stop_token_ids=frozenset(eos_token_ids(base.model, base.tokenizer)),
        seed=spec.seed,
        clock=recorder.clock,
        kept=KeptRollouts(run.rollouts, context.plan.made_for),
        write_samples=partial(write_samples, run, events),
        record_figures=recorder.rollout,
        log_info=events.message,
        log_warning=partial(events.message, level="warn"),
        stop_requested=lambda: context.control.stop_requested,
    )
    with adapter_dtype_kept(model):
        trainer = GRPOTrainer(
            model=model,
            args=grpo_config(run.root, train_plan, plan, seed=spec.seed),
            plan=plan,
            runner=runner,
            eval_dataset=_eval_dataset(prompts.validation),
            least_parts=train_plan.gradient_accumulation_steps,
            shared_prompt=(recipe.rollout or RolloutRecipe()).shared_prompt,
            processing_class=base.tokenizer,
            save=saving.due,
            importance_sampling=importance_sampling,
            **rates,
        )
    callbacks = add_callbacks(context, loaded, saving, trainer, train_plan)
    patched = patch_model(context, loaded)
    if trainer.ref_model is not None and loaded.patches:
        own_head = use_own_head(trainer.ref_model)
        patch(trainer.ref_model, loaded.patches - ({"loss"} if own_head else set()))
    if trainer.left_out_router_loss:
        events.message(
            f"The loss does not include the load-balancing loss of {type(base.model).__name__}'s "
            f"router. TRL adds this loss with the weight {trainer.left_out_router_loss:g}.",
            level="warn",
        )
    memory = resolve_memory(context, loaded, trainer, layouts, patched)
    tuning = memory.planner.tuning
    checked = ReinforcementContext(
        trainer=trainer,
        base=base,
        patched=patched,
        engine=runner.engine,
        score=trainer.score,
        requests=runner.requests,
        prompts=prompts.rows,
        recipe=recipe,
        load_plan=loaded.load_plan,
        train_plan=train_plan,
        free=read_free_memory(trainer.args.device, 0).free,
        optimizer_bytes=int(tuning.trained * tuning.optimizer_bytes),
        folder=run.root,
    )
    with rollout_failures():
        engine.start()  # before the time limit of the self-check begins
        self_check(checked, events, reinforcement_checks(engine.fall_back))
    watch_first_step(context, checked, ReinforcementStep(checked), callbacks)
    if recipe.self_check:
        warnings = RolloutWarnings(
            events,
            loaded.load_plan.precision,
            groups_with_spread=lambda: runner.spreads,
            will_resume=lambda: context.control.stop_requested,
        )
        trainer.add_callback(warnings)
    reference = evaluation_base(context, loaded)
    resume_from_point(context, trainer)
    data_plan = DataPlan(
        max_seq_length=prompts.longest + plan.max_completion_length,
        overlong=recipe.overlong,
        assistant_only_loss=True,
        packing=False,
    )
    start_recording(context, loaded, trainer, layouts, memory, data_plan, train_plan)
    return PreparedRun(
        trainer=trainer,
        callbacks=callbacks,
        saving=saving,
        patched=patched,
        memory=memory,
        rows_at_a_time=train_plan.per_device_train_batch_size,
        interruption=Interrupted,
        resources=runner,
        evaluator=reinforcement_evaluation(
            context, loaded, prompts, engine.engine_for, plan.max_completion_length
        )
        if recipe.evaluate
        else None,
        reference=reference,
    )


def _eval_dataset(prompts: Sequence[PromptRow] | None) -> Any:  # Any: datasets are untyped
    """Return a data set that only transformers' Trainer requires: the rollout runner has its own
    prompts."""
    return prompts and datasets.Dataset.from_dict({"prompt": [row.text for row in prompts]})


def _one_layout(plan: GRPOPlan, choices: Choices) -> Layouts:
    """Return the only layout of GRPO: completions concatenated without padding."""
    layout = Layout(kind="padding_free", rows=plan.completions_per_step)
    reason = "completions are concatenated"
    return Layouts(LayoutPlan(layouts={layout.kind: layout}, reason=reason), choices)


def _make_engine(
    context: RunContext, loaded: LoadedModel, plan: GRPOPlan, longest_prompt: int
) -> RunEngine:
    model, recipe = loaded.model, context.spec.recipe
    workload = Workload(
        model=model,
        precision=loaded.load_plan.precision,
        quantization=recipe.quantization,
        lora=(recipe.lora or LoraRecipe()) if recipe.tuning == "lora" else None,
        rows=plan.completions_per_step,
        prompt_tokens=longest_prompt,
        max_tokens=plan.max_completion_length,
        free=read_free_memory(next(model.parameters()).device, 0).free,
    )
    return RunEngine(
        workload,
        (recipe.rollout or RolloutRecipe()).fast_inference,
        loaded.base.tokenizer,
        context.plan.choices,
        partial(context.events.message, level="warn"),
        context.plan.write,
    )
