"""Command line of `tunesmith demo`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from tunesmith import TunesmithError
from tunesmith_worker.rundir.errors import RunError, print_failure

from .files import DemoError
from .run import run_demo
from .summary import render_short, serve_command


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    console = Console(highlight=False, soft_wrap=True)
    before = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # SIGTERM ends the demo like Ctrl-C
    try:
        summary = run_demo(
            arguments.output, arguments.model, arguments.data, arguments.max_steps, console
        )
    except RunError as error:
        print_failure(error.failure)
        return 1
    except (DemoError, TunesmithError) as error:  # an SDK error's message contains its hint
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the service has stopped\n")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    console.print(Markdown(render_short(summary)))
    console.print(f"{summary.seconds:.0f} s in total")
    console.print(f"Summary with curves: [bold]{summary.output}/summary.md[/bold]")
    console.print(f"Adapter: {summary.output}/adapter")
    console.print("Portal: run this command, and open the link that it prints:")
    console.print(f"  {serve_command(summary, _program())}", markup=False)
    return 0


def _program() -> str:
    """Return the command `tunesmith`, or its path if the shell does not find it."""
    path = Path(sys.executable).with_name("tunesmith")
    return "tunesmith" if shutil.which("tunesmith") else shlex.quote(str(path))


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tunesmith demo",
        description="Without --model: make a small model and data, train on this machine, and "
        "compare before and after. With --model and --data: use your model and data.",
    )
    parser.add_argument("--model", help="your base model: a folder or a Hugging Face id")
    parser.add_argument("--data", type=Path, help="your data: JSONL, JSON, Parquet or CSV")
    parser.add_argument("--max-steps", type=int, help="maximum optimiser steps on your data")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        help="output folder (default: demo-output)",
    )
    arguments = parser.parse_args(argv)
    if (arguments.model is None) != (arguments.data is None):
        parser.error("--model and --data must be used together")
    if arguments.max_steps is not None and (arguments.model is None or arguments.max_steps < 1):
        parser.error("--max-steps must be 1 or more, and needs --model and --data")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
