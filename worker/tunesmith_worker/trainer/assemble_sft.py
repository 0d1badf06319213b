"""Preparation of a supervised run, from the data to the first step."""

from __future__ import annotations

from dataclasses import replace

from tunesmith_schema import PhaseName
from tunesmith_worker.engine.model.embeddings import used_tokens
from tunesmith_worker.engine.model.quantization import adapter_dtype_kept
from tunesmith_worker.engine.patches import stock_attention_reason
from tunesmith_worker.engine.patches.separate_rows import mixed_rows_reason
from tunesmith_worker.trainer.auto.layout_choice import plan_layouts
from tunesmith_worker.trainer.auto.layouts import Layouts
from tunesmith_worker.trainer.auto.resolve_sft import plan_data, plan_train
from tunesmith_worker.trainer.data.prepare import prepare
from tunesmith_worker.trainer.methods.config import sft_config
from tunesmith_worker.trainer.methods.sft import SFTTrainer

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
from .evaluate_run import supervised_evaluation
from .load import LoadedModel, train_rows
from .resume import check_steps_left
from .selfcheck import SupervisedContext, self_check, supervised_checks
from .selfcheck.shadow import SupervisedStep


def prepare_supervised(context: RunContext, loaded: LoadedModel) -> PreparedRun:
    run, spec, events, recorder = context.run, context.spec, context.events, context.recorder
    recipe, choices = spec.recipe, context.plan.choices
    base, model = loaded.base, loaded.model

    with events.phase("data"):
        data_plan = plan_data(recipe, base.context, choices)
        data = prepare(run, spec, base, data_plan, events)
        training = data.training
        used = used_tokens(training.dataset)
        train_rows(context, loaded, used)
        stock_attention = stock_attention_reason(base.model)
        ours = bool(loaded.patches - {"loss"}) and stock_attention is None
        mixed_rows = None
        if data_plan.packing and not ours:
            mixed_rows = mixed_rows_reason(base.model, used)
        if mixed_rows is not None:
            data_plan = replace(data_plan, packing=False)
            events.message(
                f"recipe.packing=true has no effect: {mixed_rows}. Rows are padded instead.",
                level="warn",
            )
        with recorder.clock.during(PhaseName.PACK):
            train_set, valid_set = data.sets(data_plan, spec.seed)

    recorder.clock.switch(PhaseName.PLAN)
    if valid_set is None:
        warn_of_ignored_settings(context)
    train_plan = plan_train(
        recipe,
        spec.hyperparameters,
        rows=data.trained_rows,
        sequences=len(train_set),
        has_validation=valid_set is not None,
        choices=choices,
    )
    check_steps_left(context.point, train_plan.total_steps)
    rates = resolve_update_rates(context, loaded, train_plan)

    layout_plan = plan_layouts(
        recipe,
        stock_attention,
        mixed_rows=mixed_rows,
        patched=bool(loaded.patches - {"loss"}),
        lengths=training.lengths,
        rows=train_plan.per_device_train_batch_size,
        passes=train_plan.gradient_accumulation_steps,
        total_steps=train_plan.total_steps,
        parameters=base.model.num_parameters(),
        device=loaded.device,
    )
    layouts = Layouts(layout_plan, choices)
    context.plan.write()
    recorder.clock.switch(PhaseName.SETUP)

    saving = make_output_writer(context, loaded, training.first)
    with adapter_dtype_kept(model):
        trainer = SFTTrainer(
            model=model,
            args=sft_config(run.root, train_plan, seed=spec.seed),
            train_dataset=train_set,
            eval_dataset=valid_set,
            processing_class=base.tokenizer,
            save=saving.due,
            layouts=layouts,
            **rates,
        )
    trainer.name_row = data.row_numbers
    callbacks = add_callbacks(context, loaded, saving, trainer, train_plan)
    patched = patch_model(context, loaded)
    memory = resolve_memory(context, loaded, trainer, layouts, patched)
    checked = SupervisedContext(
        trainer=trainer,
        base=base,
        patched=patched,
        layouts=layouts,
        memory=memory,
        recipe=recipe,
        load_plan=loaded.load_plan,
        data_plan=data_plan,
        train_plan=train_plan,
        training=training,
        training_file=run.root / spec.training_file,
        folder=run.root,
    )
    self_check(checked, events, supervised_checks())
    watch_first_step(context, checked, SupervisedStep(checked), callbacks)
    reference = evaluation_base(context, loaded)
    resume_from_point(context, trainer)
    start_recording(context, loaded, trainer, layouts, memory, data_plan, train_plan)
    return PreparedRun(
        trainer=trainer,
        callbacks=callbacks,
        saving=saving,
        patched=patched,
        memory=memory,
        rows_at_a_time=train_plan.per_device_train_batch_size,
        evaluator=supervised_evaluation(
            context, loaded, data, trainer, train_plan.per_device_train_batch_size
        )
        if recipe.evaluate
        else None,
        reference=reference,
    )
