"""The trainer process, top to bottom: `python -m tunesmith_worker.run RUN_DIR`.

A pure function of its run directory: it holds no credentials and knows no server.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

from tunesmith_schema import EXIT_STOPPED, EventKind, PhaseName, RunResult

from .checkpoints.format import forget_all
from .compare import compare_stock
from .control import StopControl
from .errors import (
    EXIT_DISK_FULL,
    EXIT_READ_ONLY,
    RunError,
    failure_of,
    is_disk_full,
    is_read_only,
    naming_batch_size,
    say,
)
from .events import EventLog
from .folders import RunDirectory, remove_unfinished, write_json
from .plan import plan_data, plan_layouts, plan_load, plan_patches, plan_train
from .plan_file import PlanFile
from .process import (
    SpawnSettings,
    Waited,
    ctrl_c_is_sigterm,
    default_environment,
    die_with_supervisor,
    keep_freed_memory,
    leave,
    quick_imports,
    waited_for_spawn,
)
from .report.recorder import RunRecorder
from .report.settings import training_settings
from .resume import begin_anew_after_success, check_steps_left, find_resume_point
from .run_spec import EXIT_UNUSABLE, UnusableRunDirectory, read_spec
from .spare import SPARE, take_a_run
from .terminal import Show, Terminal, show_on_stdout

EXIT_NOT_TAKEN = 4
EXIT_CODES = {"succeeded": 0, "failed": 1, "stopped": EXIT_STOPPED}


def main(folder: Path, waited: Waited | None = None, show: Show = lambda line: None) -> int:
    """`waited`: what a spare trainer knows of it; else it is found out. `show`: gets the story."""
    run = RunDirectory(folder.resolve())
    recorder, terminal = RunRecorder(run), Terminal(show)
    control = StopControl(run, before_leaving=recorder.leave)
    unusable = False
    try:
        events = EventLog(run.events, recorder.clock, terminal.event)
        result = train(run, events, control, recorder, waited or waited_for_spawn())
    except RunError as error:
        say(error.failure)
        result = RunResult(outcome="failed", error=error.failure)
        unusable = isinstance(error, UnusableRunDirectory)
    except Exception as error:  # whatever it is, result.json has to say it
        traceback.print_exc()
        if is_disk_full(error):
            remove_unfinished(run.root)  # it may be what filled the disk
        result = RunResult(outcome="failed", error=failure_of(error, run.root))
    if unusable and not run.root.is_dir():
        return EXIT_UNUSABLE
    recorder.end(result.outcome)
    try:
        write_json(run.result, result)
    except OSError as error:
        if is_disk_full(error):
            return EXIT_DISK_FULL
        if is_read_only(error, run.root):
            return EXIT_READ_ONLY
        raise
    if result.outcome == "succeeded":
        forget_all(run.checkpoints)
    terminal.end(run, result)
    return EXIT_UNUSABLE if unusable else EXIT_CODES[result.outcome]


def train(
    run: RunDirectory,
    events: EventLog,
    control: StopControl,
    recorder: RunRecorder,
    waited: Waited | None,
) -> RunResult:
    spec = read_spec(run.root)
    begin_anew_after_success(run)
    run.forget_outcome()
    recorder.attempt = spec.attempt
    recipe, full = spec.recipe, spec.recipe.tuning == "full"
    if waited is not None:
        seconds = round(waited.spawn, 3)
        text = f"spawn took {seconds:.2f} s"
        events.append(EventKind.PHASE, text, {"phase": "spawn", "seconds": seconds})
    point = find_resume_point(run, spec, events)
    plan = PlanFile(run, spec, events)
    choices = plan.choices

    quantized = recipe.quantization != "none"
    waited_for_imports = waited.imports if waited else 0.0
    with events.phase("import", waited=waited_for_imports), quick_imports(quantized=quantized):
        import transformers

        from .adapter_size import settle_size
        from .adapters import adapter_dtype, attach_lora, check_saving
        from .data.prepare import prepare
        from .embeddings import add_tokens, embedding_rate, train_token_rows, used_tokens
        from .model import find_device, load_base
        from .optimizers.choose import described, optimizer_for
        from .patches import CompiledLayers, patch, why_stock_attention
        from .quantization import adapter_dtype_kept
        from .saving import Saving
        from .self_check import Subject, self_check, supervised_checks
        from .trainers.layouts import Layouts
        from .trainers.memory_plan import MemoryPlan
        from .trainers.sft import SFTTrainer, sft_config

    with events.phase("load"):
        transformers.utils.logging.disable_progress_bar()
        transformers.set_seed(spec.seed)
        device = find_device()
        load_plan = plan_load(recipe, device, choices)
        base = load_base(spec, load_plan)
        new_tokens = add_tokens(base.model, base.tokenizer, recipe.add_tokens, events)
        model = base.model if full else attach_lora(base.model, recipe, choices)
        if full:
            naive = load_plan.precision == "bf16"
            events.message(described(load_plan.precision), level="warn" if naive else "info")
        if full or new_tokens.ids:
            check_saving(run.root, model, base.tokenizer)
        patches = plan_patches(recipe, choices)

    with events.phase("data"):
        data_plan = plan_data(recipe, base.context, choices)
        data = prepare(run, spec, base, data_plan, events)
        training = data.training
        if not recipe.from_scratch:
            itemsize = adapter_dtype(recipe).itemsize
            used = used_tokens(training.dataset)
            train_token_rows(
                model, base.tokenizer, used, new_tokens, events, adapter_itemsize=itemsize
            )
        with recorder.clock.during(PhaseName.PACK):
            train_set, valid_set = data.sets(data_plan, spec.seed)

    recorder.clock.switch(PhaseName.PLAN)
    train_plan = plan_train(
        recipe,
        spec.hyperparameters,
        rows=training.counts.kept,
        sequences=len(train_set),
        has_validation=valid_set is not None,
        choices=choices,
    )
    check_steps_left(point, train_plan.total_steps)
    token_rate = embedding_rate(model, recipe, train_plan.learning_rate, choices)
    if not full:
        settle_size(model, adapter_dtype(recipe), choices)

    layout_plan = plan_layouts(
        recipe,
        why_stock_attention(base.model),
        patched=bool(patches - {"loss"}),
        lengths=training.lengths,
        rows=train_plan.per_device_train_batch_size,
        passes=train_plan.gradient_accumulation_steps,
        total_steps=train_plan.total_steps,
        device=device,
    )
    layouts = Layouts(layout_plan, choices, total_steps=train_plan.total_steps, decided=plan.write)
    plan.write()
    recorder.clock.switch(PhaseName.SETUP)

    saving = Saving(
        run,
        spec,
        events,
        recorder,
        model,
        base.tokenizer,
        probe_ids=training.first,
        with_tokenizer=bool(new_tokens.ids),
    )
    with adapter_dtype_kept(model):
        trainer = SFTTrainer(
            model=model,
            args=sft_config(run.root, load_plan, train_plan, seed=spec.seed),
            train_dataset=train_set,
            eval_dataset=valid_set,
            processing_class=base.tokenizer,
            save=saving.due,
            layouts=layouts,
            embedding_rate=token_rate,
            optimizer_cls_and_kwargs=optimizer_for(
                load_plan.precision,
                full=full,
                learning_rate=train_plan.learning_rate,
                seed=spec.seed,
            ),
        )
    trainer.name_row = data.row_numbers
    callbacks = saving.add_callbacks(
        trainer,
        control,
        plan,
        layouts,
        save_steps=train_plan.save_steps,
        lost_updates=full and load_plan.precision != "fp32",
    )
    patched = patch(model, patches) if patches else None
    events.message(
        patched.report.summary() if patched else "the stock trainer: recipe.patches is 'off'"
    )

    with events.phase("plan"):
        memory = MemoryPlan(
            trainer,
            layouts,
            patched.report if patched else None,
            given=recipe.gradient_checkpointing,
            may_split=recipe.per_device_train_batch_size == "auto",
            full=full,
            precision=load_plan.precision,
            choices=choices,
            events=events,
            write=plan.write,
        )
        memory.settle()
        plan.write()
    self_check(
        Subject(
            trainer=trainer,
            base=base,
            patched=patched,
            layouts=layouts,
            memory=memory,
            recipe=recipe,
            load_plan=load_plan,
            data_plan=data_plan,
            train_plan=train_plan,
            training=training,
            training_file=run.root / spec.training_file,
            folder=run.root,
        ),
        events,
        supervised_checks(),
    )
    if patched is not None and not memory.recomputes and not quantized:
        layouts.may_compile(CompiledLayers(base.model, patched.layers))
    if point is not None:
        before = trainer.go_on_from(point.folder, forked=spec.forked)
        layouts.resume(before.layouts, point.step)

    settings = training_settings(
        load_plan, data_plan, train_plan, full=full, recomputes=memory.recomputes
    )
    recorder.watch(
        trainer,
        settings,
        layouts,
        device=device.name,
        choices=choices.made,
        layers=memory.layer_counters(),
    )
    with events.phase("train"):
        control.training_begins()
        memory.training_begins()
        rows, points = train_plan.per_device_train_batch_size, callbacks.resume_points
        with naming_batch_size(rows), points.writing():
            trainer.train()
            trainer.guard.check()
        recorder.training_ended()
    memory.report()
    steps = trainer.state.global_step
    if steps < train_plan.total_steps and not (callbacks.stopping.fired or control.end_requested):
        return RunResult(
            outcome="stopped",
            step=steps,
            trained_tokens=trainer.trained_tokens,
            metrics=callbacks.run.metrics,
        )

    layouts.training_ended()
    with events.phase("save"):
        step, saved = callbacks.stopping.result(run.adapter, steps, saving.weights)
        if saved is not None:
            events.message(saved.summary(), data=saved.as_data())
    return RunResult(
        outcome="succeeded",
        kind="full" if full else "lora",
        directory=run.relative(run.adapter),
        step=step,
        trained_tokens=trainer.trained_tokens,
        metrics=callbacks.run.metrics,
    )


def _command() -> int:
    parser = argparse.ArgumentParser(prog="tunesmith run", description="Train one run directory.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="holds spec.json and data/")
    parser.add_argument("--json", action="store_true", help="print result.json, and only that")
    parser.add_argument(
        "--compare-stock",
        type=int,
        metavar="N",
        help="train N steps with our kernels and with the stock trainer, and print both curves; "
        "RUN_DIR is only read",
    )
    arguments = parser.parse_args()
    if arguments.compare_stock is not None:
        if arguments.compare_stock < 1:
            parser.error(f"--compare-stock takes 1 step or more, got {arguments.compare_stock}")
        return compare_stock(arguments.run_dir, arguments.compare_stock)
    ctrl_c_is_sigterm()
    by_hand = SpawnSettings.from_environment().supervisor_pid is None and not arguments.json
    status = main(arguments.run_dir, show=show_on_stdout) if by_hand else main(arguments.run_dir)
    if arguments.json and (arguments.run_dir / "result.json").exists():
        result = (arguments.run_dir / "result.json").read_text(encoding="utf-8")
        sys.stdout.write(json.dumps(json.loads(result)) + "\n")
    return status


def _spare() -> int:
    taken = take_a_run()
    return EXIT_NOT_TAKEN if taken is None else main(taken.run_dir, taken.waited)


if __name__ == "__main__":
    die_with_supervisor()
    default_environment(os.environ)  # a run by hand has no supervisor that set it
    keep_freed_memory()
    leave(_spare() if sys.argv[1:] == [SPARE] else _command())
