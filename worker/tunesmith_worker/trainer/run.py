"""The trainer process: `python -m tunesmith_worker.trainer RUN_DIR`.

To follow a run, read the functions of this file from top to bottom. The result depends only on the
run directory. The trainer has no credentials and contacts no server.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith_schema import EXIT_STOPPED, EventKind, JobFailure, RunResult
from tunesmith_worker.engine.model.versions import check_versions
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.device_use import TrainerUse
from tunesmith_worker.rundir.errors import (
    EXIT_DISK_FULL,
    EXIT_READ_ONLY,
    ModelFailed,
    RunError,
    disk_full,
    explain_model_errors,
    explain_out_of_memory,
    failure_of,
    is_disk_full,
    is_read_only,
    print_failure,
)
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, remove_unfinished, write_json
from tunesmith_worker.rundir.plan_file import PlanFile
from tunesmith_worker.rundir.process import (
    SpawnSettings,
    StartDelay,
    quick_imports,
    spawn_delay,
    treat_ctrl_c_as_sigterm,
)
from tunesmith_worker.rundir.resume_point import remove_resume_points
from tunesmith_worker.rundir.spec import (
    EXIT_UNUSABLE,
    UnusableRunDirectory,
    check_grader,
    read_spec,
)
from tunesmith_worker.trainer.report.recorder import RunRecorder

from .compare_stock import compare_stock
from .console import ConsoleOutput, Show, show_on_stdout
from .context import RunContext
from .resume import find_resume_point, restart_after_success
from .wait_for_run import wait_for_run

if TYPE_CHECKING:
    from .rewards import LocalReward

Evaluate = Callable[[], None] | None
"""Function that evaluates the stored result; None without an evaluation."""
EXIT_NOT_TAKEN = 4
EXIT_CODES = {"succeeded": 0, "failed": 1, "stopped": EXIT_STOPPED}


def main(
    folder: Path,
    waited: StartDelay | None = None,
    show: Show = lambda line: None,
    rewards: Sequence[str] = (),
) -> int:
    """Train a run directory, write result.json and return the exit status.

    `waited`: delay of the run's start if a warm trainer (wait_for_run.py) runs it, else None.
    `show`: function that prints a line for each event. `rewards`: reward functions from the command
    line, each `FILE.py:NAME[=WEIGHT]`."""
    with TrainerUse() as device_use:
        return _main(folder, waited, show, rewards, device_use)


def _main(
    folder: Path,
    waited: StartDelay | None,
    show: Show,
    rewards: Sequence[str],
    device_use: TrainerUse,
) -> int:
    run = RunDirectory(folder.resolve())
    recorder, console = RunRecorder(run), ConsoleOutput(show)
    control = StopControl(run, before_exit=recorder.leave)
    unusable = False
    evaluate: Evaluate = None
    try:
        events = EventLog(run.events, recorder.clock, console.event)
        result, evaluate = train(
            run, events, control, recorder, waited or spawn_delay(), rewards, device_use
        )
    except RunError as error:
        _print_failure(error.failure, with_traceback=isinstance(error, ModelFailed))
        result = RunResult(outcome="failed", error=error.failure)
        unusable = isinstance(error, UnusableRunDirectory)
    except Exception as error:  # result.json must report every failure
        if is_disk_full(error):
            remove_unfinished(run.root)  # unfinished files may have filled the disk
        failure = failure_of(error, run.root)
        _print_failure(failure, with_traceback=True)
        result = RunResult(outcome="failed", error=failure)
    if unusable and not run.root.is_dir():
        return EXIT_UNUSABLE
    recorder.end(result.outcome)
    try:
        write_json(run.result, result)
    except OSError as error:
        if is_disk_full(error):
            if result.error is None:
                _print_failure(disk_full(str(error)))
            return EXIT_DISK_FULL
        if is_read_only(error, run.root):
            return EXIT_READ_ONLY
        raise
    if result.outcome == "succeeded":
        remove_resume_points(run.checkpoints)
    if evaluate is not None:  # after result.json: the job has already succeeded
        evaluate()
        recorder.write(result.outcome)
    console.end(run, result)
    return EXIT_UNUSABLE if unusable else EXIT_CODES[result.outcome]


def _print_failure(failure: JobFailure, *, with_traceback: bool = False) -> None:
    with suppress(OSError):  # the log's disk may be full
        if with_traceback:
            traceback.print_exc()
        print_failure(failure)


def train(
    run: RunDirectory,
    events: EventLog,
    control: StopControl,
    recorder: RunRecorder,
    waited: StartDelay | None,
    rewards: Sequence[str],
    device_use: TrainerUse,
) -> tuple[RunResult, Evaluate]:
    """Train a run directory.

    Returns the result, and the evaluation to do after the result is stored.
    """
    spec = read_spec(run.root)
    check_grader(spec, rewards)
    local: Sequence[LocalReward] = ()
    if rewards:
        from tunesmith_worker.trainer.rewards.local import load_rewards

        local = load_rewards(rewards, spec.method)
    check_versions()
    restart_after_success(run)
    run.remove_outcome()
    recorder.attempt = spec.attempt
    recipe = spec.recipe
    if waited is not None:
        seconds = round(waited.spawn, 3)
        text = f"spawn took {seconds:.2f} s"
        events.append(EventKind.PHASE, text, {"phase": "spawn", "seconds": seconds})
    point = find_resume_point(run, spec, events)
    plan = PlanFile(run, spec, events)
    context = RunContext(
        run=run,
        spec=spec,
        events=events,
        control=control,
        recorder=recorder,
        plan=plan,
        device_use=device_use,
        point=point,
        rewards=local,
    )

    waited_for_imports = waited.imports if waited else 0.0
    quantized = recipe.quantization != "none"
    with events.phase("import", waited=waited_for_imports), quick_imports(quantized=quantized):
        from .evaluate_run import evaluation_of, keep_last_weights
        from .load import load
        from .read_back import read_back

        if spec.method == "reinforcement":
            from .assemble_grpo import prepare_reinforcement as prepare
        else:
            from .assemble_sft import prepare_supervised as prepare

    loaded = load(context)
    with explain_model_errors(loaded.base.architecture):
        ready = prepare(context, loaded)
    trainer, callbacks = ready.trainer, ready.callbacks
    with events.phase("train"):
        control.training_begins()
        ready.memory.training_started()
        points = callbacks.resume_points
        with explain_out_of_memory(ready.rows_at_a_time), points.writing(), ready.resources:
            try:
                trainer.train()
            except ready.interruption:
                points.save_interrupted_step(trainer)
            trainer.guard.check()
        recorder.training_ended()
    ready.memory.report()
    steps = trainer.state.global_step
    if steps < trainer.args.max_steps and not (callbacks.stopping.fired or control.end_requested):
        stopped = RunResult(
            outcome="stopped",
            step=steps,
            trained_tokens=trainer.trained_tokens,
            metrics=callbacks.run.metrics,
        )
        return stopped, None

    with events.phase("save"):
        step, saved = callbacks.stopping.result(run.adapter, steps, ready.saving.weights)
        if saved.adapter is not None:
            events.message(saved.adapter.summary(), data=saved.adapter.as_data())
        last = keep_last_weights(context, ready, step)
        intact = read_back(context, loaded, ready.patched, step, saved)
    result = RunResult(
        outcome="succeeded",
        kind="full" if recipe.tuning == "full" else "lora",
        directory=run.relative(run.adapter),
        step=step,
        trained_tokens=trainer.trained_tokens,
        metrics=callbacks.run.metrics,
    )
    return result, evaluation_of(context, loaded, ready, step, last=last, intact=intact)


def command() -> int:
    parser = argparse.ArgumentParser(prog="tunesmith run", description="Train one run directory.")
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="folder with spec.json and data/"
    )
    parser.add_argument("--json", action="store_true", help="print only result.json")
    parser.add_argument(
        "--compare-stock",
        type=int,
        metavar="N",
        help="train N steps with our kernels and with the stock trainer, and print both loss "
        "curves; does not change RUN_DIR; only for supervised runs",
    )
    parser.add_argument(
        "--reward",
        action="append",
        default=[],
        metavar="FILE.py:NAME[=WEIGHT]",
        help="reward function with TRL's signature, in addition to the grader; repeatable",
    )
    arguments = parser.parse_args()
    if arguments.compare_stock is not None:
        if arguments.compare_stock < 1:
            parser.error(f"--compare-stock must be at least 1, got {arguments.compare_stock}")
        return compare_stock(arguments.run_dir, arguments.compare_stock)
    treat_ctrl_c_as_sigterm()
    by_hand = SpawnSettings.from_environment().supervisor_pid is None and not arguments.json
    show: Show = show_on_stdout if by_hand else lambda line: None
    status = main(arguments.run_dir, show=show, rewards=arguments.reward)
    if arguments.json and (arguments.run_dir / "result.json").exists():
        result = (arguments.run_dir / "result.json").read_text(encoding="utf-8")
        sys.stdout.write(json.dumps(json.loads(result)) + "\n")
    return status


def warm() -> int:
    taken = wait_for_run()
    return EXIT_NOT_TAKEN if taken is None else main(taken.run_dir, taken.waited)
