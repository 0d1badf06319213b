"""Part `grpo`: time of whole GRPO steps, and of decoding with an adapter.

GRPO steps are compared with stock TRL, which generates with transformers' `generate`. Decoding with
an adapter is compared with decoding by the bare model. grpo_side.py runs the steps. The model is
random and in bf16, and the lengths of the completions are forced. The first step compiles and
selects kernels; its time is printed but not counted.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tunesmith_worker.rundir.process import quick_imports

with quick_imports():
    import torch

    from tunesmith_worker.engine.memory.free_memory import read_free_memory
    from tunesmith_worker.engine.rollout import (
        NativeEngine,
        Request,
        RolloutFigures,
        native,
        plan_rollout,
    )

    from .. import grpo_side
    from ..grpo_task import GROUP, Task, find_device, stock_model
    from .grpo_plan import TINY
    from .serving import Case, serve

Untyped = Any  # Any: transformers is not typed

WARM_UP = 1
REPEATS = 3
"""Number of rollouts in a measurement. The result is from the fastest rollout."""
REAL_TASK = Task(
    side="ours",
    dtype="bfloat16",
    tuning="lora",
    prompt_tokens=256,
    new_tokens=256,
    ragged=False,
    steps=WARM_UP + 4,
    prompts_per_step=4,
)


def task_of(model: str, side: str, tuning: str) -> Task:
    task = replace(REAL_TASK, model=model, side=side, tuning=tuning)
    if model != TINY:
        return task
    return replace(task, prompt_tokens=12, new_tokens=6, steps=WARM_UP + 2, prompts_per_step=2)


def steps(model: str, side: str, tuning: str) -> dict[str, Any]:  # Any: JSON
    task = task_of(model, side, tuning)
    with tempfile.TemporaryDirectory() as folder:
        train = grpo_side.ours if side == "ours" else grpo_side.stock
        meter, idle = train(task, Path(folder))
    seconds = meter.wall[WARM_UP:]
    result = {
        "seconds_per_step": round(statistics.median(seconds), 4),
        "step_seconds": [round(value, 4) for value in seconds],
        "warm_up_seconds": [round(value, 4) for value in meter.wall[:WARM_UP]],
        "generated_tokens_per_second": round(
            task.completions * task.new_tokens / statistics.median(seconds), 1
        ),
        "idle_gib": round(idle / 2**10, 3),
        "peak_above_idle_gib": round((meter.peak - idle) / 2**10, 3),
    }
    if side == "ours":
        sync = statistics.median(meter.sync_seconds[WARM_UP:])
        result["sync_share"] = round(sync / statistics.median(seconds), 5)
    return result


def decode(model: str, batch: int, *, ragged: bool) -> dict[str, Any]:  # Any: JSON
    """Measure the seconds to decode `batch` completions, 8 per prompt. The time excludes the weight
    sync (loading the newest weights into the engine) and the prefill (forward pass of
    the prompts). Ragged completions have different lengths and leave the batch one by one. Each new
    batch layout needs another CUDA graph."""
    task = replace(task_of(model, "ours", "lora"), steps=1, prompts_per_step=batch // GROUP)
    prompts, lengths = task.prompts(), replace(task, ragged=ragged).lengths(0)
    requests = [
        Request(prompt_ids=tuple(prompts[place // GROUP]), max_tokens=length, seed=place)
        for place, length in enumerate(lengths)
    ]
    decoded: dict[str, Decoded] = {}
    for name, tuning in (("base", "full"), ("adapter", "lora")):
        tuned = stock_model(replace(task, tuning=tuning)).to(find_device()).eval()
        for key, parameter in tuned.named_parameters():
            if "lora_B" in key:  # otherwise LoRA's B is zero, and the adapter has no effect
                torch.nn.init.normal_(parameter, std=0.02)
        decoded[name] = _decoded(tuned, task, requests)
        if name == "adapter":
            with patch.object(native, "recorder_for", lambda device: None):
                decoded["without_graphs"] = _decoded(tuned, task, requests, repeats=1)
        del tuned
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    figures = decoded["adapter"].figures
    seconds = {name: result.seconds for name, result in decoded.items()}
    return {
        "batch": batch,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "tokens_per_second": {
            name: round(sum(lengths) / value, 1) for name, value in seconds.items()
        },
        "adapter_on_base": round(seconds["base"] / seconds["adapter"], 4),
        "graphs_speed_up": round(seconds["without_graphs"] / seconds["adapter"], 4),
        "graph_steps": figures.graph_steps,
        "decode_steps": figures.decode_steps,
        "recording_error": figures.recording_error,
    }


@dataclass(frozen=True)
class Decoded:
    seconds: float
    figures: RolloutFigures


def _decoded(
    model: Untyped, task: Task, requests: list[Request], repeats: int = REPEATS
) -> Decoded:
    plan = plan_rollout(
        model,
        rows=len(requests),
        prompt_tokens=task.prompt_tokens,
        max_tokens=task.new_tokens,
        free=read_free_memory(find_device(), 0).free,
    )
    engine, times = NativeEngine(model, plan), []
    for _ in range(repeats + 1):
        engine.generate(requests)
        times.append(engine.figures.decode.wall_seconds)
    return Decoded(min(times[1:]), engine.figures)


def case(name: str) -> Case:
    model, kind, which, *_ = name.split("/")

    def run() -> dict[str, Any]:  # Any: JSON
        if kind in ("decode", "ragged"):
            return decode(model, int(which), ragged=kind == "ragged")
        return steps(model, kind, which)

    return run


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cases", nargs="+", required=True)
    names = arguments.parse_args().cases
    return serve({name: case(name) for name in names})


if __name__ == "__main__":
    sys.exit(main())
