"""What the run report costs a training step: `python -m benchmarks.report_overhead RUN_DIR`.

RUN_DIR as for `tunesmith run`, with 400 steps or more. In one training, blocks of steps with the
clock, the counters and the live metrics alternate with blocks without. One JSON line:

overhead         median over neighbouring blocks of CPU-seconds with / without, less one
overhead_error   standard error of their mean
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import transformers

from tunesmith_worker.trainer import run
from tunesmith_worker.trainer.report.recorder import RunRecorder
from tunesmith_worker.trainer.report.steps import PHASES

from .service_parts.machine import cpu_model

TIMED = (*PHASES, "training_step", "compute_loss")
"""What `time_steps` puts into a trainer instance."""


class Alternator(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
    """Takes the timing out of the trainer and puts it back, block by block."""

    def __init__(self, trainer: Any, block: int) -> None:
        self._trainer, self._block = trainer, block
        self._methods = {name: vars(trainer)[name] for name in TIMED}
        self.timed = True
        self.blocks: list[tuple[bool, float]] = []
        self._began = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._block:
            return
        now = time.process_time()
        if state.global_step > self._block:
            self.blocks.append((self.timed, now - self._began))
        self.timed = not self.timed
        for name, method in self._methods.items():
            if self.timed:
                setattr(self._trainer, name, method)
            else:
                vars(self._trainer).pop(name)
        self._began = time.process_time()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--block", type=int, default=5, help="steps with or without")
    given = parser.parse_args()
    alternators: list[Alternator] = []
    watch, live = RunRecorder.watch, RunRecorder.live

    def watch_in_blocks(recorder: RunRecorder, trainer: Any, *rest: Any, **named: Any) -> None:
        watch(recorder, trainer, *rest, **named)
        alternators.append(Alternator(trainer, given.block))
        trainer.add_callback(alternators[0])

    def live_in_blocks(self: RunRecorder) -> dict[str, float | None]:
        return live(self) if alternators[0].timed else {}

    RunRecorder.watch = watch_in_blocks  # type: ignore[assignment,method-assign]  # more freely typed
    RunRecorder.live = live_in_blocks  # type: ignore[method-assign]  # measured with and without
    if run.main(given.run_dir):
        return 1
    print(json.dumps(summary(alternators[0].blocks, given.block)), file=sys.stdout)
    return 0


def summary(blocks: list[tuple[bool, float]], block: int) -> dict[str, Any]:
    pairs = list(zip(blocks[2::2], blocks[3::2], strict=False))  # the first two warm up
    ratios = [
        (one if timed else other) / (other if timed else one) for (timed, one), (_, other) in pairs
    ]
    seconds = [spent / block for timed, spent in blocks if not timed]
    return {
        "overhead": round(statistics.median(ratios) - 1, 5),
        "overhead_error": round(statistics.stdev(ratios) / math.sqrt(len(ratios)), 5),
        "pairs": len(ratios),
        "step_cpu_ms": round(statistics.median(seconds) * 1e3, 2),
        "cpu": cpu_model(),
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
