"""Measure the cost of the self-check: `python -m benchmarks.self_check`.

Trains 5 steps of each case with the code of `tunesmith run` and times the self-check inside the
run. Times are CPU-seconds of one thread. Prints one JSON line. For each case, the line has these
values.

`self_check`: CPU-seconds of the self-check before the first step.
`first_step`: CPU-seconds of the comparison of the first step with plain torch.
`looks`: CPU-seconds of the repeated checks at a later step.
`first_step_share_of_200`: The sum of `first_step` and six times `looks`, divided by the CPU-seconds
    of 200 steps.
`step`: Median CPU-seconds of an optimizer step.
`share_of_200`: `self_check` divided by the CPU-seconds of 200 steps.
`within`: True if `self_check` is at most 3 s or at most 3 % of 200 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

from tunesmith_schema import Recipe, RunSpec
from tunesmith_worker.trainer import run
from tunesmith_worker.trainer import selfcheck as self_check
from tunesmith_worker.trainer.callbacks import RunCallback
from tunesmith_worker.trainer.selfcheck.shadow import budget
from tunesmith_worker.trainer.selfcheck.shadow.callback import FirstStepShadow
from tunesmith_worker.trainer.selfcheck.shadow.relook import RunningLook

from .service_parts.machine import cpu_model
from .sft_side import make_model

DATA = Path(__file__).parents[2] / "shared" / "data"
STEPS, RUN_STEPS = 5, 200
SECONDS_BAR, SHARE_BAR = 3.0, 0.03
LOOKS = 6
"""Number of steps that repeat the checks in a run of 200 steps: steps 2, 10, 50, 100, 150 and
200."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-math, LoRA fp32": ("tiny-math", {}),
    "tiny-math, LoRA bf16": ("tiny-math", {"precision": "bf16"}),
    "tiny-math, full fp32": ("tiny-math", {"tuning": "full"}),
    "12.4 M, LoRA fp32": ("llama-12m", {}),
    "12.4 M, LoRA bf16": ("llama-12m", {"precision": "bf16"}),
    "12.4 M, full bf16_error_word": (
        "llama-12m",
        {"tuning": "full", "precision": "bf16_split_master"},
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each case; the result is the median"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    spent: list[float] = []
    steps: list[float] = []
    shadows: list[float] = []
    looks: list[float] = []
    _time_the_self_check(spent)
    _time_steps(steps)
    budget.SECONDS = math.inf  # compare the whole step, as in a run of 200 steps
    _time_callback(FirstStepShadow, shadows)
    _time_callback(RunningLook, looks)
    cases = {}
    with tempfile.TemporaryDirectory() as scratch:
        models = {"tiny-math": options.data / "models" / "tiny-math"}
        models["llama-12m"] = _larger_model(Path(scratch), models["tiny-math"])
        lines = (options.data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
        for name, (model, recipe) in CASES.items():
            for times in (spent, steps, shadows, looks):
                times.clear()
            for repeat in range(options.repeats):
                folder = Path(scratch) / f"{name} {repeat}"
                _prepare(folder, models[model], lines[:500], recipe)
                if run.main(folder):
                    return 1
            first = sum(shadows) / options.repeats
            look = sum(looks) / options.repeats  # only step 2 has repeated checks
            cases[name] = _summary(spent, steps, first, look, _checks(folder))
            sys.stderr.write(f"{name}: {cases[name]}\n")
    result = {
        "benchmark": "self_check",
        "cpu": cpu_model(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cases": cases,
        "within": all(case["within"] for case in cases.values()),
    }
    print(json.dumps(result))
    return 0


def _time_the_self_check(spent: list[float]) -> None:
    right = self_check.self_check

    def timed(*args: Any) -> None:
        began = time.process_time()
        right(*args)
        spent.append(time.process_time() - began)

    self_check.self_check = timed  # type: ignore[assignment]  # untyped wrapper


def _time_callback(kind: Any, seconds: list[float]) -> None:
    for name in ("on_pre_optimizer_step", "on_optimizer_step", "on_step_end"):
        right = getattr(kind, name)

        def timed(*args: Any, right: Any = right, **named: Any) -> None:
            began = time.process_time()
            right(*args, **named)
            seconds.append(time.process_time() - began)

        setattr(kind, name, timed)


def _time_steps(steps: list[float]) -> None:
    right, ended = RunCallback.on_step_end, [0.0]

    def timed(self: RunCallback, args: Any, state: Any, control: Any, **rest: Any) -> None:
        now = time.process_time()
        if state.global_step > 1:
            steps.append(now - ended[0])
        ended[0] = now
        right(self, args, state, control, **rest)

    RunCallback.on_step_end = timed  # type: ignore[method-assign]  # adds timing


def _larger_model(scratch: Path, like: Path) -> Path:
    folder = scratch / "llama-12m"
    make_model(torch.float32).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    return folder


def _prepare(folder: Path, model: Path, lines: list[str], recipe: dict[str, Any]) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    spec = RunSpec(
        job_id="ftjob-1",
        attempt=1,
        model="base",
        model_path=str(model),
        training_file="data/train.jsonl",
        seed=7,
        recipe=Recipe.model_validate({"max_steps": STEPS, **recipe}),
    )
    (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")


def _checks(folder: Path) -> dict[str, int]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line)["data"] for line in lines]
    (checks,) = [data["checks"] for data in events if "checks" in data]
    return dict(Counter(check["state"] for check in checks.values()))


def _summary(
    spent: list[float], steps: list[float], first: float, look: float, checks: dict[str, int]
) -> dict[str, Any]:
    seconds, step = statistics.median(spent), statistics.median(steps)
    share = seconds / (RUN_STEPS * step)
    return {
        "self_check": round(seconds, 3),
        "largest": round(max(spent), 3),
        "step": round(step, 4),
        "share_of_200": round(share, 4),
        "first_step": round(first, 3),
        "looks": round(look, 3),
        "first_step_share_of_200": round((first + LOOKS * look) / (RUN_STEPS * step), 4),
        "checks": checks,
        "within": seconds <= max(SECONDS_BAR, SHARE_BAR * RUN_STEPS * step),
    }


if __name__ == "__main__":
    sys.exit(main())
