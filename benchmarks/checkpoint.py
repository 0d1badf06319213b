"""Measure the cost of resume points at the default interval:

    python -m benchmarks.checkpoint MODEL ROWS.jsonl --write

MODEL is a small model (tiny-math). The second model is a Llama of 12.4 million random parameters
with MODEL's tokenizer. Each model trains on ROWS once with LoRA and once with full tuning, for
`--seconds` each. Each training run has its own process. `wall` and `cpu` must be at most 1 %.

`wall`: Share of the run's time that training spends waiting for resume points.
`cpu`: Share of the run's CPU-seconds spent on resume points, including the writing thread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .service_parts.machine import cpu_model

RESULT = Path(__file__).parent / "results" / "checkpoint.json"
BAR = 0.01
SETTINGS = [(model, tuning) for model in ("tiny-math", "12m") for tuning in ("lora", "full")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0, help="seconds of each training run")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument(
        "--side", nargs=2, metavar=("MODEL", "TUNING"), help="measure one case in this process"
    )
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options, *options.side)))
        return 0
    results = []
    for side in SETTINGS:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.checkpoint", *sys.argv[1:], "--side", *side],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
        results.append(json.loads(done.stdout.decode().splitlines()[-1]))
        print(json.dumps(results[-1]), flush=True)
    result = summary(results)
    print(json.dumps({name: result[name] for name in ("worst", "bar")}))
    if options.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return int(max(result["worst"].values()) > BAR)


def measure(options: argparse.Namespace, model: str, tuning: str) -> dict[str, Any]:
    """Measure one training run, which stops after `--seconds`."""
    from tunesmith_schema import Recipe, RunSpec
    from tunesmith_worker.rundir.control import StopControl
    from tunesmith_worker.trainer import run
    from tunesmith_worker.trainer.checkpoints.saver import ResumePoints
    from tunesmith_worker.trainer.checkpoints.write import ResumePointWriter

    points: list[dict[str, float]] = []
    began: list[float] = []
    ended: list[float] = []
    steps: list[int] = []
    save, write = ResumePoints.save, ResumePointWriter._write

    def timed_save(self: Any, trainer: Any) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        before = self._last
        save(self, trainer)
        if self._last != before:
            seconds = time.perf_counter() - wall
            points.append({"blocked": seconds, "cpu": time.thread_time() - cpu})

    def timed_write(self: Any, *arguments: Any) -> Any:
        written = write(self, *arguments)
        points[-1] |= {"written_cpu": written.cpu_seconds, "bytes": written.bytes}
        return written

    def step_ended(self: StopControl, step: int) -> None:
        now = [time.perf_counter(), time.process_time()]
        if not began:
            began.extend(now)  # the one-time costs of the first step do not count
        steps.append(step)
        if now[0] - began[0] >= options.seconds and not self.end_requested:
            self.end_requested = True
            ended.extend(now)

    ResumePoints.save = timed_save  # type: ignore[method-assign]  # adds timing
    ResumePointWriter._write = timed_write  # type: ignore[assignment,method-assign]  # adds timing
    StopControl.step_ended = step_ended  # type: ignore[method-assign]  # stops by time instead of by command
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        (root / "data").mkdir()
        shutil.copy(options.rows, root / "data" / "train.jsonl")
        recipe = Recipe(
            tuning=tuning,
            max_steps=1_000_000,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=1,
            max_seq_length=256,
            save_steps="auto",
            self_check=False,
        )
        path = options.model if model == "tiny-math" else large_model(root / "12m", options.model)
        spec = RunSpec(
            job_id="benchmark", attempt=1, model=model, model_path=str(path),
            training_file="data/train.jsonl", recipe=recipe,
        )  # fmt: skip
        (root / "spec.json").write_text(spec.model_dump_json())
        status = run.main(root)
        assert status == 0, (root / "result.json").read_text()
    wall, cpu = ended[0] - began[0], ended[1] - began[1]
    blocked = sum(point["blocked"] for point in points)
    spent = sum(point["cpu"] + point.get("written_cpu", 0.0) for point in points)
    return {
        "model": model,
        "tuning": tuning,
        "steps": steps[-1],
        "seconds": round(wall, 1),
        "points": len(points),
        "bytes": max((int(point.get("bytes", 0)) for point in points), default=0),
        "blocked_ms": [round(point["blocked"] * 1e3, 2) for point in points],
        "cpu_ms": [
            round((point["cpu"] + point.get("written_cpu", 0.0)) * 1e3, 2) for point in points
        ],
        "wall": round(blocked / wall, 5),
        "cpu": round(spent / cpu, 5),
    }


def large_model(folder: Path, tokenizer: Path) -> Path:
    import torch
    import transformers

    from .sft_side import make_model

    make_model(torch.float32).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    import torch
    import transformers

    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "bar": BAR,
        "worst": {name: max(run[name] for run in results) for name in ("wall", "cpu")},
        "runs": results,
    }


if __name__ == "__main__":
    sys.exit(main())
