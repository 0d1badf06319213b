"""Measure the speed-up from shared prompts in training: `python -m benchmarks.shared_prompt`.

Times forward and backward of one GRPO step of the 12.4 M Llama of sft.py with LoRA of rank 32 on
all projections. A step has 2 prompts with GENERATIONS completions of 128 tokens each. A shared row
has a prompt once and all its completions; a plain row repeats the prompt for each completion. Both
layouts alternate in one process on one thread. Prints one JSON line. For each dtype and prompt
length, the line has the values below.

`forward`, `backward`: Median CPU-seconds of each layout.
`least`: Smallest CPU-seconds of forward plus backward, for each layout.
`speed_ratio`: `least` of plain rows divided by `least` of shared rows.
`token_ratio`: Number of tokens of plain rows divided by number of tokens of shared rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from typing import Any

import peft
import torch
import transformers
from trl.trainer.utils import add_fused_lm_head

from tunesmith_worker.engine.patches import patch
from tunesmith_worker.trainer.methods.completion_scores import score_completions
from tunesmith_worker.trainer.methods.groups import GroupLayout, GroupRow, sizes_of, token_ratio

from .service_parts.machine import cpu_model
from .sft_side import PROJECTIONS, make_model

PROMPTS, COMPLETION = 2, 128
LAYOUTS: tuple[GroupLayout, ...] = ("shared", "plain")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], nargs="+", default=["float32"])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[70, 512])
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument(
        "--repeats", type=int, default=6, help="steps of each layout after the warm-up"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = {}
    for dtype in options.dtype:
        model = _model(getattr(torch, dtype))
        for tokens in options.prompt_tokens:
            rows = _rows(tokens, options.generations)
            cases[f"{dtype}, {tokens} tokens"] = case = _measured(model, rows, options.repeats)
            sys.stderr.write(f"{dtype}, {tokens} tokens: {case}\n")
    result = {
        "benchmark": "shared_prompt",
        "cpu": cpu_model(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "generations": options.generations,
        "allocator": {name: v for name, v in os.environ.items() if name.startswith("MALLOC_")},
        "cases": cases,
    }
    print(json.dumps(result))
    return 0


def _model(dtype: torch.dtype) -> Any:
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=32, lora_alpha=16, target_modules=PROJECTIONS
    )
    model = peft.get_peft_model(make_model(dtype), settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.01)
    add_fused_lm_head(model.get_base_model())
    patch(model)
    return model.train()


def _rows(prompt_tokens: int, generations: int) -> list[GroupRow]:
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(8192) for _ in range(count))

    prompts = [tokens(prompt_tokens) for _ in range(PROMPTS)]
    rows = [GroupRow(prompt, tokens(COMPLETION)) for prompt in prompts for _ in range(generations)]
    draw.shuffle(rows)
    return rows


def _measured(model: Any, rows: list[GroupRow], repeats: int) -> dict[str, Any]:
    seconds: dict[str, list[tuple[float, float]]] = {layout: [] for layout in LAYOUTS}
    for layout in LAYOUTS:
        _step(model, rows, layout)
    for _ in range(repeats):
        for layout in LAYOUTS:
            seconds[layout].append(_step(model, rows, layout))
    least = {layout: min(map(sum, seconds[layout])) for layout in LAYOUTS}
    result: dict[str, Any] = {
        layout: {
            "forward": round(statistics.median(value for value, _ in seconds[layout]), 3),
            "backward": round(statistics.median(value for _, value in seconds[layout]), 3),
            "least": round(least[layout], 3),
        }
        for layout in LAYOUTS
    }
    result["speed_ratio"] = round(least["plain"] / least["shared"], 3)
    result["token_ratio"] = round(token_ratio(sizes_of(rows)), 3)
    return result


def _step(model: Any, rows: list[GroupRow], layout: GroupLayout) -> tuple[float, float]:
    """Return the CPU-seconds of forward and of backward. Each completion has a different loss
    weight."""
    weights = torch.linspace(-1, 1, len(rows))[:, None]
    model.zero_grad()
    began = time.process_time()
    device = torch.device("cpu")
    scores = score_completions(model, rows, layout=layout, device=device, entropy=True)
    loss = (scores.log_probs * weights).sum()
    between = time.process_time()
    loss.backward()
    return between - began, time.process_time() - between


if __name__ == "__main__":
    sys.exit(main())
