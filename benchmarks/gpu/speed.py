"""Part `speed`: training steps of whole trainers, each in its own process.

Token counts exclude padding. The first steps compile and select kernels; their times are printed
but not counted. Step times are measured with CUDA events at the ends of steps; the host
synchronizes only after the last step. Memory is torch's peak of allocated memory during training,
including weights.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunesmith_worker.rundir.process import quick_imports

with quick_imports():
    import torch
    import transformers

    from ..sft_side import most_memory, watch_memory
    from .models import operations_per_token, products_of_step
    from .serving import Case, serve
    from .sides import SIDES, Task
    from .speed_plan import STEPS, TINY, WARM_UP
    from .timing import sustained_rate

Untyped = Any  # Any: transformers and TRL are not typed

TOP = 15


def steps_of(model: str) -> tuple[int, int]:
    """Numbers of warm-up steps and of measured steps."""
    return (1, 2) if model in TINY else (WARM_UP, STEPS)


class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
    """Record the time at the start and after every step."""

    def __init__(self) -> None:
        self._marks: list[Untyped] = []

    def on_train_begin(self, *_: Untyped, **__: Untyped) -> None:
        self._mark()

    def on_step_end(self, *_: Untyped, **__: Untyped) -> None:
        self._mark()

    def seconds(self) -> list[float]:
        """Return the seconds of each step."""
        if not torch.cuda.is_available():
            return [b - a for a, b in zip(self._marks, self._marks[1:], strict=False)]
        torch.cuda.synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return [a.elapsed_time(b) / 1e3 for a, b in pairs]

    def _mark(self) -> None:
        if not torch.cuda.is_available():
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)


def measure(model: str, side: str, setting: str) -> dict[str, Any]:  # Any: JSON
    warm_up, steps = steps_of(model)
    with tempfile.TemporaryDirectory() as folder:
        task = Task(model=model, setting=setting, steps=warm_up + steps, folder=Path(folder))
        built = SIDES[side](task)
        tokens = counting(built.trainer)
        clock = quiet(built.trainer, Clock())
        idle = watch_memory()
        output = built.trainer.train()
        seconds = clock.seconds()
        peak = most_memory()
    rate = sum(tokens[warm_up : warm_up + steps]) / sum(seconds[warm_up:])
    result = {
        "tokens_per_second": round(rate, 1),
        "peak_gib": round(peak / 2**10, 3),
        "idle_gib": round(idle / 2**10, 3),
        "tokens_per_step": sum(tokens[: warm_up + steps]) / (warm_up + steps),
        "warm_up_seconds": [round(value, 4) for value in seconds[:warm_up]],
        "step_seconds": [round(value, 4) for value in seconds[warm_up:]],
        "loss": output.training_loss,
        "passed": math.isfinite(output.training_loss),
        **built.notes,
    }
    if task.whole and side == "ours":
        device = next(built.model.parameters()).device
        products = products_of_step(built.model, task.length)
        blas = sustained_rate(products, device, torch.bfloat16)
        result["blas_tflop_per_s"] = round(blas / 1e12, 6)
    if task.whole:
        result["model_tflop_per_s"] = round(
            operations_per_token(built.model, task.length) * rate / 1e12, 6
        )
    return result


def profile(model: str, side: str) -> dict[str, Any]:  # Any: JSON
    """Profile steps without recomputation. Report the kernels with the longest total time."""
    warm_up, _ = steps_of(model)
    traced = 2
    with tempfile.TemporaryDirectory() as folder:
        task = Task(
            model=model, setting="no-recompute", steps=warm_up + traced, folder=Path(folder)
        )
        built = SIDES[side](task)
        tracer = quiet(built.trainer, Tracer(warm_up))
        built.trainer.train()
    kernels = tracer.kernels()
    busy = sum(elapsed for _, elapsed, _ in kernels)
    return {
        "steps": traced,
        "wall_ms": round(tracer.wall * 1e3, 1),
        "device_busy_share": round(busy / tracer.wall, 3),
        "top_shown": "share of the busy time, ms a step, calls a step",
        "top": [
            f"{elapsed / busy:6.1%} {elapsed / traced * 1e3:9.3f} ms {count // traced:5d} x {name}"
            for name, elapsed, count in kernels[:TOP]
        ],
    }


class Tracer(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
    """Run torch's profiler from the end of step `first` to the end of training."""

    def __init__(self, first: int) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds = [torch.profiler.ProfilerActivity.CUDA]
        self._profiler = torch.profiler.profile(activities=kinds)
        self._first = first
        self.wall = 0.0

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if state.global_step == self._first:
            synchronize()
            self._begun = time.perf_counter()
            self._profiler.start()

    def on_train_end(self, *_: Untyped, **__: Untyped) -> None:
        synchronize()
        self.wall = time.perf_counter() - self._begun
        self._profiler.stop()

    def kernels(self) -> list[tuple[str, float, int]]:
        """Return name, seconds and calls of each kernel; the kernel with the most seconds comes
        first."""
        on_gpu = torch.cuda.is_available()
        key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        rows = [
            (str(row.key)[:110], getattr(row, key) / 1e6, int(row.count))
            for row in self._profiler.key_averages()
            if not row.is_user_annotation
        ]
        return sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def quiet(trainer: Untyped, callback: Untyped) -> Untyped:
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(callback)
    return callback


def counting(trainer: Untyped) -> list[int]:
    """Wrap the collator of `trainer` to count tokens. The returned list receives the number of
    tokens of each batch."""
    collate: Callable[..., dict[str, Untyped]] = trainer.data_collator
    counts: list[int] = []

    def counted(rows: Untyped) -> dict[str, Untyped]:
        counts.append(sum(len(row["input_ids"]) for row in rows))
        return collate(rows)

    trainer.data_collator = counted
    return counts


def case(name: str) -> Case:
    model, side, setting, _ = name.split("/")

    def run() -> dict[str, Any]:  # Any: JSON
        gc.collect()  # frees the previous trainer, which has reference cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return profile(model, side) if setting == "profile" else measure(model, side, setting)

    return run


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cases", nargs="+", required=True)
    return serve({name: case(name) for name in arguments.parse_args().cases})


if __name__ == "__main__":
    sys.exit(main())
