"""Command line of `tunesmith demo`."""

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

from .files import OutputRefused
from .run import run_demo
from .service import ServiceFailed
from .summary import STAGES, Summary, results
from .task import BadTask


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    # With --json, stdout has only the JSON object; the text for people goes to stderr.
    console = Console(stderr=arguments.json, highlight=False, soft_wrap=True)
    before = signal.signal(signal.SIGTERM, _exit)  # so that SIGTERM stops the service too
    try:
        summary = run_demo(
            arguments.output, arguments.model, arguments.data, arguments.max_steps, console
        )
    except (OutputRefused, BadTask, ServiceFailed, RunError, TunesmithError) as error:
        # The messages of the SDK's errors contain their hints.
        hint = error.failure.hint if isinstance(error, RunError) else None
        sys.stderr.write(f"error: {error}\n" + (f"hint: {hint}\n" if hint else ""))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the service has stopped\n")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    _print(summary, console)
    if arguments.json:
        sys.stdout.write(summary.to_json() + "\n")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tunesmith demo",
        description="Without --model: make a small model and data, train the model on this "
        "machine, and show what changed. With --model and --data: the same with yours.",
    )
    parser.add_argument("--model", help="your base model: a folder or a Hugging Face id")
    parser.add_argument("--data", type=Path, help="your data: JSONL, JSON, Parquet or CSV")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        help="output folder (default: demo-output)",
    )
    parser.add_argument("--max-steps", type=_positive, help="maximum optimiser steps of each job")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    arguments = parser.parse_args(argv)
    if (arguments.model is None) != (arguments.data is None):
        parser.error("--model and --data go together")
    return arguments


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def _exit(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def _print(summary: Summary, console: Console) -> None:
    table = Table("", "base model", "with adapter", title=f"{summary.held_out_rows} held-out rows")
    for row in results(summary):
        table.add_row(*row)
    console.print(table)
    for sample in summary.samples[:2]:
        for name, text in (
            ("prompt      ", sample.prompt),
            ("base model  ", sample.base),
            ("with adapter", sample.tuned),
        ):
            console.print(f"  {name}  {' '.join(text.split())[:160]}", markup=False)
        console.print()
    if (reward := summary.reward) is not None:
        console.print(
            f"Mean reward of GRPO: {reward.before:.2f} in the first step, {reward.after:.2f} in "
            f"the last steps.\nIts completions: tunesmith jobs samples {reward.job_id} (start the "
            "service first; see summary.md)\n"
        )
    console.print(f"{summary.seconds_total:.0f} s in total:")
    for stage, seconds in summary.seconds.items():
        console.print(f"  {seconds:6.1f} s  {STAGES.get(stage, stage)}")
    console.print(f"Summary with curves: [bold]{summary.output_path}/summary.md[/bold]")
    console.print(f"Adapter: {summary.adapter_path}")


if __name__ == "__main__":
    sys.exit(main())
