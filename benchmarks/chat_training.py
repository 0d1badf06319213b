"""Measure a training job with and without chat: `python -m benchmarks.chat --part training`.

All processes share two cores, as in a small deployment. Eight clients stream completions without
pause from the inference process, which has loaded the same model as the job. While the job trains,
chat runs for four seconds and stops for four seconds in turn. Other load on the machine thus
affects the steps with chat and the steps without chat in the same way.

`slowdown`: mean time of a training step while chat runs / while chat is stopped.
`interval`: 90 % confidence interval of the slowdown, from a bootstrap over pairs of windows (four
    seconds with chat and four seconds without chat).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from tunesmith_schema import EventKind, Recipe, RunEvent, RunSpec

from .chat_server import PROMPT, Server, our_server, prompts

STREAMS, NEW, CORES = 8, 256, 2
WINDOW, SETTLE = 4.0, 0.5
"""Length of a window in seconds, and number of seconds at its start that are not measured."""
BAR = 1.10

Window = tuple[bool, float, float]
"""A window of time. The first value is True if chat runs; the other values are the start and the
end in Unix seconds."""


def beside_training(model: Path, rounds: int, steps: int) -> dict[str, Any]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    pairs: list[tuple[list[float], list[float]]] = []
    tokens: list[float] = []
    with our_server(model) as server, busy(server) as clients:
        for number in range(rounds):
            found, rates = job(model, steps, server, clients, number)
            pairs += found
            tokens += rates
            print(f"{slowdown(found):.3f}, {len(found)} pairs of windows", file=sys.stderr)
    draw = random.Random(1)
    drawn = sorted(slowdown(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    alone, beside = ([t for pair in pairs for t in pair[side]] for side in (0, 1))
    return {
        "slowdown": round(slowdown(pairs), 3),
        "interval": [round(drawn[100], 3), round(drawn[-101], 3)],
        "slowdown_bar": BAR,
        "step_ms": {
            "alone": round(1000 * fmean(alone), 1),
            "beside": round(1000 * fmean(beside), 1),
        },
        "steps": {"alone": len(alone), "beside": len(beside)},
        "chat_tokens_per_second": round(fmean(tokens), 1),
    }


def slowdown(pairs: Sequence[tuple[list[float], list[float]]]) -> float:
    """Divide the mean step time with chat by the mean step time without chat. Each item of `pairs`
    has the step times without chat and the step times with chat."""
    alone, beside = ([t for pair in pairs for t in pair[side]] for side in (0, 1))
    return fmean(beside) / fmean(alone)


def job(
    model: Path, steps: int, server: Server, clients: Clients, number: int
) -> tuple[list[tuple[list[float], list[float]]], list[float]]:
    """Run one job; return the step times of each pair of windows, and chat's tokens per second."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = [{"text": f"How much is {n} plus {n * 7 % 50}? " * 8} for n in range(200)]
        lines = "\n".join(json.dumps(row) for row in rows)
        (folder / "train.jsonl").write_text(lines, encoding="utf-8")
        spec = RunSpec(
            job_id="beside-chat",
            attempt=1,
            model=model.name,
            model_path=str(model),
            training_file="train.jsonl",
            recipe=Recipe(
                max_steps=steps,
                evaluate=False,
                self_check=False,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=1,
            ),
            seed=1,
        )
        (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "tunesmith_worker.trainer", scratch]
        events = folder / "events.jsonl"
        windows: list[Window] = []
        tokens: list[float] = []
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as trainer:
            while trainer.poll() is None and len(step_ends(events)) < 3:
                time.sleep(0.1)
            chats = bool(number % 2)
            while trainer.poll() is None:
                chats = not chats
                before, began = clients.tokens, time.time()
                server.pause(not chats)
                clients.pause(not chats)
                time.sleep(WINDOW)
                windows.append((chats, began + SETTLE, time.time()))
                if chats:
                    tokens.append((clients.tokens - before) / (time.time() - began))
        server.pause(False)
        clients.pause(False)
        if trainer.returncode:
            sys.exit("the job failed")
        ends = step_ends(events)
    return in_pairs(windows[:-1], ends), tokens[:-1]


def step_ends(events: Path) -> list[float]:
    """Return the times at which a job's steps ended, in Unix seconds."""
    if not events.exists():
        return []
    lines = events.read_text(encoding="utf-8").splitlines()
    found = [RunEvent.model_validate_json(line) for line in lines if line.endswith("}")]
    return [
        event.created_at
        for event in found
        if event.kind == EventKind.METRICS and "train_loss" in event.data
    ]


def in_pairs(
    windows: Sequence[Window], ends: Sequence[float]
) -> list[tuple[list[float], list[float]]]:
    """Return two lists for each pair of adjacent windows: durations of the steps without chat, and
    durations of the steps with chat."""
    times = [
        [b - a for a, b in pairwise(ends) if a >= start and b <= stop] for _, start, stop in windows
    ]
    pairs = []
    for place in range(0, len(windows) - 1, 2):
        first, second = times[place : place + 2]
        if first and second:
            pairs.append((second, first) if windows[place][0] else (first, second))
    return pairs


class Clients:
    """Eight clients in a separate process."""

    def __init__(self, process: subprocess.Popen[bytes], count: Path) -> None:
        self._process, self._count = process, count

    @property
    def tokens(self) -> int:
        return self._count.stat().st_size if self._count.exists() else 0

    def pause(self, stop: bool) -> None:
        self._process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)


@contextmanager
def busy(server: Server) -> Iterator[Clients]:
    """Keep eight streams open from another process."""
    with tempfile.TemporaryDirectory() as scratch:
        count = Path(scratch) / "tokens"
        command = [sys.executable, "-m", "benchmarks.chat_training", *server.arguments, str(count)]
        with subprocess.Popen(command) as process:
            clients = Clients(process, count)
            try:
                while clients.tokens < STREAMS:
                    if process.poll() is not None:
                        sys.exit("the clients ended")
                    time.sleep(0.05)
                yield clients
            finally:
                process.kill()


async def stream_forever(server: Server, count: Path) -> None:
    """Stream without pause, and append a byte to the file `count` for each token. Send a refused
    request again, because the server refuses requests while a job measures the free memory."""
    with count.open("ab", buffering=0) as file:

        def count_one() -> None:
            file.write(b".")

        async def one() -> None:
            while True:
                with suppress(SystemExit, OSError):
                    await server.stream(prompts(1, PROMPT)[0], NEW, count_one)

        await asyncio.gather(*(one() for _ in range(STREAMS)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Clients of the benchmark.")
    for name in ("url", "token", "model", "count"):
        parser.add_argument(name)
    options = parser.parse_args()
    os.nice(10)  # in a deployment, clients run elsewhere
    server = Server(options.url, options.token, options.model)
    with suppress(KeyboardInterrupt):
        asyncio.run(stream_forever(server, Path(options.count)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
