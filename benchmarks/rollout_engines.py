"""Measure one rollout engine for rollout.py, in a separate process. Prints one JSON line.

`--side` is the engine's name. A cell is a number of rows and a length of prompts; at most 8 rows
share a prompt. Each cell has three rollouts. The first rollout is not counted, and the result is
the faster of the other two. If the engine cannot generate, the JSON line has the reason in
`skipped`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rollout_side import GROUP, NEW, with_lora

Untyped = Any  # Any: transformers is not typed

ROWS = (1, 8, 32)
PROMPT_TOKENS = (16, 512)
REPEATS = 2


def requests(rows: int, prompt_tokens: int, new: int, vocabulary: int) -> list[Untyped]:
    from tunesmith_worker.engine.rollout import Request

    draw = random.Random(1)
    prompts = [
        tuple(draw.randrange(3, vocabulary) for _ in range(prompt_tokens))
        for _ in range(-(-rows // GROUP))
    ]
    return [Request(prompt_ids=prompts[i // GROUP], max_tokens=new, seed=i) for i in range(rows)]


def measure(
    name: str, model: Untyped, cells: list[tuple[int, int]], new: int, precision: str = "fp32"
) -> dict[str, Any]:
    """Measure the engine `name`. `cells` has pairs of the number of rows and the prompt length;
    `new` is the number of tokens of each completion."""
    from tunesmith_schema import LoraRecipe
    from tunesmith_worker.engine.rollout.choose import Workload, engine_kind

    kind = engine_kind(name)
    assert kind is not None, f"there is no engine {name}"
    workload = Workload(
        model=model,
        rows=max(rows for rows, _ in cells),
        prompt_tokens=max(tokens for _, tokens in cells),
        max_tokens=new,
        free=4 << 30,
        precision=precision,
        lora=LoraRecipe(r=32),
    )
    why_not = kind.why_not(workload)
    if why_not is not None:
        return {"engine": name, "skipped": why_not, "cells": []}
    engine = kind.make(model, kind.plan(workload), None)
    results = []
    for rows, prompt_tokens in cells:
        given = requests(rows, prompt_tokens, new, model.config.vocab_size)
        seconds = []
        for _ in range(REPEATS + 1):
            start = time.process_time()
            completions = engine.generate(given)
            seconds.append(time.process_time() - start)
        tokens = sum(len(completion.token_ids) for completion in completions)
        assert tokens == rows * new
        results.append(
            {
                "rows": rows,
                "prompt_tokens": prompt_tokens,
                "tokens_per_cpu_second": round(tokens / min(seconds[1:]), 1),
                "cpu_seconds": [round(second, 3) for second in seconds],
            }
        )
        print(f"{name}: {results[-1]}", file=sys.stderr)
    engine.close()
    return {"engine": name, "skipped": None, "cells": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    from tunesmith_worker.rundir.process import keep_freed_memory

    keep_freed_memory()
    cells = [(rows, tokens) for tokens in PROMPT_TOKENS for rows in options.rows]
    precision = "fp32" if options.dtype == "float32" else "bf16"
    model = with_lora(getattr(torch, options.dtype))
    print(json.dumps(measure(options.side, model, cells, NEW, precision)))


if __name__ == "__main__":
    main()
