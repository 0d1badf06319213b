"""Measure rollouts of one engine (ours or transformers) for rollout.py. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.sft_side import PROJECTIONS, make_model, most_memory, watch_memory

Untyped = Any  # Any: transformers is not typed

NEW = 128
PROMPTS, GROUP = 2, 8


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--side", choices=["ours", "ours-in-place", "generate", "generate-merged"]
    )
    arguments.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments.add_argument("--prompt-tokens", type=int, default=70)
    arguments.add_argument("--ragged", action="store_true")
    arguments.add_argument("--rollouts", type=int, default=3)
    return arguments


def with_lora(dtype: torch.dtype) -> Untyped:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=32, lora_alpha=16, target_modules=PROJECTIONS)
    torch.manual_seed(1)
    model = peft.get_peft_model(make_model(dtype), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # otherwise LoRA's B is zero, and the adapter has no effect
            torch.nn.init.normal_(parameter, std=0.02)
    return model.eval()


def lengths(ragged: bool) -> list[int]:
    """Return the number of tokens of each completion: 128, or with `ragged` between 16 and 128
    (log-uniform)."""
    draw = random.Random(0)
    count = PROMPTS * GROUP
    if not ragged:
        return [NEW] * count
    return [round(math.exp(draw.uniform(math.log(16), math.log(NEW)))) for _ in range(count)]


def ours(model: Untyped, prompts: list[list[int]], targets: list[int], layout: Any) -> Untyped:
    from tunesmith_worker.engine.rollout import NativeEngine, Request, RolloutPlan
    from tunesmith_worker.rundir.process import keep_freed_memory

    keep_freed_memory()
    engine = NativeEngine(model, RolloutPlan(weights=layout, max_rows=len(targets)))
    requests = [
        Request(prompt_ids=tuple(prompts[i // GROUP]), max_tokens=n, seed=i)
        for i, n in enumerate(targets)
    ]

    def run() -> float:
        completions = engine.generate(requests)
        assert [len(completion.token_ids) for completion in completions] == targets
        return engine.figures.sync.cpu_seconds

    return run


def theirs(
    model: Untyped, prompts: list[list[int]], targets: list[int], merged: bool
) -> Callable[[], float]:
    """Run a rollout of transformers. The batch runs until its longest completion ends. Unlike our
    engine, transformers computes no log-probs here."""
    ids = torch.tensor([prompts[i // GROUP] for i in range(len(targets))])

    def run() -> float:
        start = time.process_time()
        if merged:
            model.merge_adapter()
        sync = time.process_time() - start
        with torch.no_grad():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max(targets),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                eos_token_id=None,
                pad_token_id=0,
                disable_compile=True,
            )
        assert out.shape[1] == ids.shape[1] + max(targets)
        if merged:
            model.unmerge_adapter()
        return sync

    return run


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    draw = random.Random(1)
    prompts = [
        [draw.randrange(3, 8192) for _ in range(options.prompt_tokens)] for _ in range(PROMPTS)
    ]
    model, targets = with_lora(getattr(torch, options.dtype)), lengths(options.ragged)
    idle = watch_memory()  # measured before our engine loads, so that its memory counts
    if options.side.startswith("ours"):
        run = ours(model, prompts, targets, "in_place" if "place" in options.side else "merged")
    else:
        run = theirs(model, prompts, targets, options.side == "generate-merged")
    seconds, sync = [], []
    for _ in range(options.rollouts + 1):
        start = time.process_time()
        sync.append(run())
        seconds.append(time.process_time() - start)
    print(
        json.dumps(
            {
                "side": options.side,
                "cpu_seconds": min(seconds[1:]),
                "cpu_seconds_all": seconds[1:],
                "warm_up_cpu_seconds": seconds[0],
                "sync_cpu_seconds": min(sync[1:]),
                "tokens": sum(targets),
                "tokens_per_cpu_second": sum(targets) / min(seconds[1:]),
                "idle_mib": idle,
                "peak_above_idle_mib": most_memory() - idle,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
