"""Compare the inference process with transformers: `python -m benchmarks.chat --model FOLDER`.

The model answers over HTTP with server-sent events. Our process and transformers load a copy of the
model without end-of-sequence token, so every completion has the maximum number of tokens. Prints
one JSON line with the values below.

`first_token_ms`: median time of 20 requests, from the request to the first token; the model is
    already loaded.
`tokens_per_second`: tokens per second with 1 stream and with 32 streams, from the best of all
    rounds.
`stream_ratio`: tokens per second with 32 streams / with 1 stream.
`speed_ratio`: our tokens per second with 32 streams / the tokens per second of transformers. The
    faster of `generate_batch` (without HTTP) and `transformers serve` counts. Our process and
    transformers run alternately.
`stall_ratio`: 99th percentile / median of the time between two tokens. Eight streams run while
    another user sends prompts of 400 tokens.

With `--part training`, the benchmark measures how much chat slows down a training job
(chat_training.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import safe_open

from .chat_server import PROMPT, Server, our_server, prompts
from .chat_training import beside_training
from .service_parts.machine import facts
from .two_sides import run_side

SIDE = Path(__file__).with_name("chat_side.py")
BARS = {"first_token_ms": 150.0, "stream_ratio": 5.0, "speed_ratio": 1.5, "stall_ratio": 3.0}
SIDES = ("generate_batch", "serve", "serve_batching")
STREAMS, NEW, LONG = 32, 128, 400


async def first_token(server: Server) -> float:
    waits = []
    for prompt in prompts(20, PROMPT):
        times = await server.stream(prompt, 4)
        waits.append(times[1] - times[0])
    return statistics.median(waits) * 1000


async def throughput(server: Server, streams: int) -> float:
    """Return the total tokens per second of all `streams` streams."""
    started = time.perf_counter()
    await asyncio.gather(*(server.stream(prompt, NEW) for prompt in prompts(streams, PROMPT)))
    return streams * NEW / (time.perf_counter() - started)


async def stalls(server: Server) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time between two tokens, in milliseconds."""
    done = asyncio.Event()

    async def other_user() -> None:
        while not done.is_set():
            (prompt,) = prompts(1, LONG)
            await server.stream(prompt, 8)

    other = asyncio.create_task(other_user())
    gaps: list[float] = []
    for _ in range(3):
        results = await asyncio.gather(*(server.stream(p, 256) for p in prompts(8, PROMPT)))
        for times in results:
            gaps += [b - a for a, b in pairwise(times[1:])]
    done.set()
    await other
    return statistics.median(gaps) * 1000, statistics.quantiles(gaps, n=100)[98] * 1000


def without_end(model: Path, folder: Path) -> Path:
    """Copy a model without its end-of-sequence token."""
    copy = Path(shutil.copytree(model, folder / model.name))
    for name, key in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        path = copy / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: None}))
    return copy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--part", choices=("speed", "training"), default="speed")
    parser.add_argument("--steps", type=int, default=600, help="steps of the part `training`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = without_end(options.model, Path(folder))
        if options.part == "speed":
            found = measure(model, options.rounds)
        else:
            found = {"benchmark": "chat_training"} | beside_training(
                model, options.rounds, options.steps
            )
        found |= {"model": described(model)}
        load = {"load_average": round(os.getloadavg()[0], 1)}
        print(json.dumps(found | load | facts()))
    return 0


def described(model: Path) -> str:
    """Return the model's architecture and number of parameters, read from its files."""
    kind = json.loads((model / "config.json").read_text())["model_type"]
    with safe_open(model / "model.safetensors", framework="pt") as weights:
        count = sum(
            math.prod(weights.get_slice(name).get_shape()) for name in weights.offset_keys()
        )
    return f"{kind}, {count / 1e6:.1f} M parameters"


def measure(model: Path, rounds: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"1": [], "32": [], **{side: [] for side in SIDES}}
    arguments = [f"--model={model}", f"--streams={STREAMS}", f"--new={NEW}"]
    with our_server(model) as server:
        asyncio.run(throughput(server, 1))
        wait = asyncio.run(first_token(server))
        for _ in range(rounds):
            rates["1"].append(asyncio.run(throughput(server, 1)))
            rates["32"].append(asyncio.run(throughput(server, STREAMS)))
            for side in SIDES:
                rates[side].append(run_side(SIDE, side, arguments, {})["tokens_per_second"])
                print(f"{side}: {rates[side][-1]:.0f} tokens/s", file=sys.stderr)
        pauses = [asyncio.run(stalls(server)) for _ in range(rounds)]
    return summary(wait, rates, pauses)


def summary(
    wait: float, rates: dict[str, list[float]], pauses: list[tuple[float, float]]
) -> dict[str, Any]:
    best = {name: round(max(values), 1) for name, values in rates.items()}
    theirs = max(best[side] for side in SIDES)
    median, late = min(pauses, key=lambda pair: pair[1] / pair[0])
    return {
        "benchmark": "chat",
        "first_token_ms": round(wait, 1),
        "tokens_per_second": best,
        "stream_ratio": round(best["32"] / best["1"], 2),
        "speed_ratio": round(best["32"] / theirs, 2),
        "stall_ratio": round(late / median, 2),
        "between_tokens_ms": {"median": round(median, 2), "p99": round(late, 2)},
        "bars": BARS,
        "rates": {name: [round(rate, 1) for rate in values] for name, values in rates.items()},
        "stall_ratios": [round(b / a, 2) for a, b in pauses],
    }


if __name__ == "__main__":
    sys.exit(main())
