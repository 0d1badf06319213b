"""A training job alone and beside a busy chat: `python -m benchmarks.chat --part training`.

All processes share two cores, as in a small deployment. Eight clients stream completions without
pause from the inference process, which loads the same model as the job. Jobs run alternately alone
and beside chat, each in a process of its own, as a worker starts them.

`train_slowdown`: median time of the job's training phase beside chat / alone.
`job_slowdown`: median time from the job's start to its end beside chat / alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tunesmith_schema import EventKind, Recipe, RunEvent, RunSpec

from .chat_server import PROMPT, Server, our_server, prompts

STREAMS, NEW, CORES = 8, 256, 2
BAR = 1.10


def beside_training(model: Path, rounds: int, steps: int) -> dict[str, Any]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    times: dict[str, list[dict[str, float]]] = {"alone": [], "beside": []}
    tokens: list[float] = []
    with our_server(model) as server:
        for _ in range(rounds):
            times["alone"].append(job(model, steps))
            with busy(server) as counted:
                before, began = counted(), time.perf_counter()
                times["beside"].append(job(model, steps))
                tokens.append((counted() - before) / (time.perf_counter() - began))
            print(f"{times['alone'][-1]} {times['beside'][-1]} {tokens[-1]}", file=sys.stderr)
    ratios = {
        f"{part}_slowdown": round(middle(times["beside"], part) / middle(times["alone"], part), 3)
        for part in ("train", "job")
    }
    return {
        **ratios,
        "slowdown_bar": BAR,
        "chat_tokens_per_second": round(statistics.median(tokens), 1),
        "seconds": {
            side: {part: [round(one[part], 2) for one in found] for part in ("train", "job")}
            for side, found in times.items()
        },
    }


def middle(times: list[dict[str, float]], part: str) -> float:
    return statistics.median(one[part] for one in times)


def job(model: Path, steps: int) -> dict[str, float]:
    """Run one job; return the seconds of its training phase and of the whole job."""
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
            recipe=Recipe(max_steps=steps, evaluate=False),
            seed=1,
        )
        (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "tunesmith_worker.trainer", scratch]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            sys.exit(done.stderr.decode(errors="replace"))
        text = (folder / "events.jsonl").read_text(encoding="utf-8")
        events = [RunEvent.model_validate_json(line) for line in text.splitlines()]
    phases = [event.data for event in events if event.kind == EventKind.PHASE]
    train = next(float(str(data["seconds"])) for data in phases if data.get("phase") == "train")
    return {"train": train, "job": seconds}


@contextmanager
def busy(server: Server) -> Iterator[Any]:
    """Keep eight streams open from another process; yield a function that counts their tokens."""
    with tempfile.TemporaryDirectory() as scratch:
        count = Path(scratch) / "tokens"
        command = [sys.executable, "-m", "benchmarks.chat_training", *server.arguments, str(count)]
        with subprocess.Popen(command) as clients:

            def counted() -> int:
                return count.stat().st_size if count.exists() else 0

            try:
                while counted() < STREAMS:
                    if clients.poll() is not None:
                        sys.exit("the clients ended")
                    time.sleep(0.05)
                yield counted
            finally:
                clients.send_signal(signal.SIGTERM)


async def stream_forever(server: Server, count: Path) -> None:
    """Stream without pause; a file grows by one byte per event. A request that is refused while a
    job measures the free memory is sent again."""
    with count.open("ab", buffering=0) as file:

        async def one() -> None:
            while True:
                with suppress(SystemExit, OSError):
                    times = await server.stream(prompts(1, PROMPT)[0], NEW)
                    file.write(b"." * (len(times) - 1))

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
