"""`tunesmith demo`: reads the arguments, tells the story on the terminal, answers with a status."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from tunesmith import TunesmithError
from tunesmith_worker.rundir.errors import RunError

from .output import OutputRefused
from .service import ServiceFailed
from .story import Options, run_demo
from .summary import NAMES, Summary, results
from .task import BadTask


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    # With --json only the object goes to stdout, for programs; people read stderr then.
    say = Console(stderr=arguments.json, highlight=False, soft_wrap=True)
    options = Options(
        output=arguments.output,
        model=arguments.model,
        data=arguments.data,
        max_steps=arguments.max_steps,
    )
    before = signal.signal(signal.SIGTERM, _leave)  # so that the service is stopped then too
    try:
        summary = run_demo(options, say)
    except (OutputRefused, BadTask, ServiceFailed, RunError, TunesmithError) as error:
        # The SDK's errors bring their hint along.
        hint = error.failure.hint if isinstance(error, RunError) else None
        sys.stderr.write(f"error: {error}\n" + (f"hint: {hint}\n" if hint else ""))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the service is stopped\n")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    _tell(summary, say)
    if arguments.json:
        sys.stdout.write(summary.to_json() + "\n")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tunesmith demo",
        description="Without --model: makes a small model and data, trains both jobs on this "
        "machine, and shows what changed. With --model and --data: the same with yours.",
    )
    parser.add_argument("--model", help="your base model: a folder or a hub id")
    parser.add_argument("--data", type=Path, help="your data set: JSONL, JSON, Parquet or CSV")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="(demo-output)")
    parser.add_argument("--max-steps", type=_positive, help="optimiser steps of a job, at most")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    arguments = parser.parse_args(argv)
    if (arguments.model is None) != (arguments.data is None):
        parser.error("--model and --data go together")
    return arguments


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def _tell(summary: Summary, say: Console) -> None:
    table = Table("", "base model", "with adapter", title=f"{summary.held_out_rows} held-out rows")
    for row in results(summary):
        table.add_row(*row)
    say.print(table)
    for sample in summary.samples[:2]:
        for name, text in (
            ("asked       ", sample.prompt),
            ("base model  ", sample.base),
            ("with adapter", sample.tuned),
        ):
            say.print(f"  {name}  {' '.join(text.split())[:160]}", markup=False)
        say.print()
    if summary.reward is not None:
        reward = summary.reward
        say.print(f"GRPO's mean reward: {reward.before:.2f} at first, {reward.after:.2f} at last.")
        say.print(f"What it drew: tunesmith jobs samples {reward.job_id} (once the service runs")
        say.print("again, with its API key: summary.md says how)")
        say.print()
    say.print(f"{summary.seconds_total:.0f} s in all:")
    for stage, seconds in summary.seconds.items():
        say.print(f"  {seconds:6.1f} s  {NAMES.get(stage, stage)}")
    say.print(f"Read [bold]{summary.output_path}/summary.md[/bold] and look at the curves there.")
    say.print(f"The adapter: {summary.adapter_path}")


if __name__ == "__main__":
    sys.exit(main())
