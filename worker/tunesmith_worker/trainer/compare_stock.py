"""`tunesmith run RUN_DIR --compare-stock N`: train N steps with our trainer, and N steps with the
stock trainer.

Prints the loss curves of our trainer and of the stock trainer on the user's data, and a verdict.
Each trainer runs in its own process and run directory; RUN_DIR is not changed.

In fp32, the losses and gradient norms of every step must agree up to rounding. Losses alone would
not show a wrong constant factor on the gradient, because Adam ignores this factor.

In bf16, the two trainers round in different places, so both bf16 loss curves are compared with the
stock fp32 loss curve. The RMS error of our bf16 loss curve may be at most 1.5 times the RMS error
of the stock bf16 loss curve. Our trainer also trains in fp32, because bf16 rounding hides small
faults.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from tunesmith_schema import (
    ErrorCategory,
    ErrorCode,
    EventKind,
    JobFailure,
    RunEvent,
    RunResult,
    RunSpec,
)
from tunesmith_schema.documents import read_file
from tunesmith_worker.engine.scientific import scientific
from tunesmith_worker.rundir.errors import print_failure
from tunesmith_worker.rundir.spec import EXIT_UNUSABLE, UnusableRunDirectory, read_spec

USER_CATEGORIES = (ErrorCategory.USER, ErrorCategory.DATA)


_NOT_SUPERVISED = JobFailure(
    category=ErrorCategory.USER,
    code=ErrorCode.RECIPE_INVALID,
    message="--compare-stock supports only supervised runs: two reinforcement runs sample "
    "different completions, so their curves differ from the first token on.",
    hint="Keep recipe.self_check on: the self-check compares rollouts, loss and gradients with "
    "stock transformers before step 1.",
)


@dataclass(frozen=True, kw_only=True)
class Side:
    curves: Curves
    tokens_per_second: float | None
    """Median speed over all steps except the first."""
    precision: str
    patched: str
    """Summary of the patched modules."""


class SideFailed(Exception):
    def __init__(self, name: str, failure: JobFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure.model_copy(update={"message": f"{name}: {failure.message}"})


def compare_stock(folder: Path, steps: int) -> int:
    """Print the comparison and return the exit status.

    Status 0: the curves agree. Status 1: the curves differ, or one trainer failed. Status 2:
    RUN_DIR has an error in its spec.json, data or model."""
    try:
        spec = read_spec(folder.resolve())
    except UnusableRunDirectory as error:
        print_failure(error.failure)
        return EXIT_UNUSABLE
    if spec.method == "reinforcement":
        print_failure(_NOT_SUPERVISED)
        return EXIT_UNUSABLE
    ours = spec.recipe.patches if spec.recipe.patches != "off" else "auto"
    if spec.recipe.lora is not None and spec.recipe.lora.lora_dropout:
        _print("lora_dropout is set to 0, because dropout masks depend on the padding")
        spec = _without_dropout(spec)
    try:
        with tempfile.TemporaryDirectory() as scratch:

            def trained(name: str, **recipe: object) -> Side:
                run = Path(scratch) / name.replace(" ", "-")
                _prepare(run, folder, spec, recipe, steps)
                _print(f"{name}: {steps} steps ...")
                if (failure := _train(run)) is not None:
                    raise SideFailed(name, failure)
                return _read(run)

            stock, mine = trained("stock", patches="off"), trained("ours", patches=ours)
            if stock.precision == "fp32":
                return _report(stock, mine)
            _print(
                "the two trainers round bf16 differently, so both trainers also train in fp32, "
                "which at least doubles the time and doubles the memory for weights"
            )
            return _report(
                stock,
                mine,
                trained("stock in fp32", patches="off", precision="fp32"),
                trained("ours in fp32", patches=ours, precision="fp32"),
            )
    except SideFailed as error:
        print_failure(error.failure)
        return EXIT_UNUSABLE if error.failure.category in USER_CATEGORIES else 1


def _prepare(run: Path, folder: Path, spec: RunSpec, change: dict[str, object], steps: int) -> None:
    data = run / spec.training_file
    data.parent.mkdir(parents=True)
    data.symlink_to((folder / spec.training_file).resolve())
    overrides: dict[str, object] = {"max_steps": steps, "logging_steps": 1}
    overrides |= {"early_stopping": None, "keep": "last", "max_seconds": None}  # no validation file
    overrides |= {"self_check": False}  # a failed self-check would end the run without curves
    if spec.recipe.packing == "auto":
        overrides["packing"] = False  # "auto" may choose padded rows, which would test stock layers
    recipe = spec.recipe.model_copy(update={**change, **overrides})
    new_spec = spec.model_copy(
        update={
            "recipe": recipe,
            "validation_file": None,
            # A relative path refers to the working directory of the user.
            "model_path": _absolute(spec.model_path),
        }
    )
    (run / "spec.json").write_text(new_spec.model_dump_json(), encoding="utf-8")


def _without_dropout(spec: RunSpec) -> RunSpec:
    assert spec.recipe.lora is not None
    lora = spec.recipe.lora.model_copy(update={"lora_dropout": 0.0})
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"lora": lora})})


def _absolute(model_path: str) -> str:
    return str(Path(model_path).resolve()) if Path(model_path).is_dir() else model_path


def _train(run: Path) -> JobFailure | None:
    command = [sys.executable, "-m", "tunesmith_worker.trainer", "--json", str(run)]
    with (run / "trainer.log").open("wb") as log:
        status = subprocess.run(command, stdout=log, stderr=log).returncode
    if status == 0:
        return None
    if (run / "result.json").exists():
        error = RunResult.model_validate_json((run / "result.json").read_bytes()).error
        if error is not None:
            return error
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.TRAINER_CRASHED,
        message=f"the trainer ended with status {status}; its log ends:\n"
        + (run / "trainer.log").read_text(errors="replace")[-2000:],
    )


def _read(run: Path) -> Side:
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [RunEvent.model_validate_json(line) for line in lines]
    points = [e.data for e in events if e.kind == EventKind.METRICS and "train_loss" in e.data]
    speeds = sorted(_number(p["tokens_per_second"]) for p in points[1:])
    chosen = {e.data["name"]: e.data["value"] for e in events if e.kind == EventKind.CHOICE}
    requested = read_file(RunSpec, (run / "spec.json").read_bytes()).recipe.precision
    measured = all(point.get("grad_norm") is not None for point in points)
    return Side(
        curves=Curves(
            losses=[_number(point["train_loss"]) for point in points],
            grad_norms=[_number(point["grad_norm"]) for point in points] if measured else [],
        ),
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        precision=str(chosen.get("precision", requested)),
        patched=next((e.message for e in events if e.message.startswith("patched ")), "nothing"),
    )


def _number(value: JsonValue) -> float:
    """Convert an event's metric to a float; null becomes NaN."""
    return float("nan") if value is None else float(str(value))


def _report(
    stock: Side, ours: Side, stock_fp32: Side | None = None, ours_fp32: Side | None = None
) -> int:
    _print(f"{ours.patched}\n\n  step      stock       ours   difference")
    pairs = zip(stock.curves.losses, ours.curves.losses, strict=True)
    for step, (a, b) in enumerate(pairs, start=1):
        _print(f"{step:6d} {a:10.6f} {b:10.6f}   {b - a:+.2e}")
    if stock.tokens_per_second and ours.tokens_per_second:
        ratio = ours.tokens_per_second / stock.tokens_per_second
        _print(
            "\ntokens per second of wall time (stock ran first, then ours): "
            f"stock {stock.tokens_per_second:,.0f}, ours {ours.tokens_per_second:,.0f} "
            f"({ratio:.2f}x)"
        )
    if stock_fp32 is None or ours_fp32 is None:
        checks = same_in_fp32(stock.curves, ours.curves)
    else:
        _print("both trainers in fp32:")
        checks = same_in_fp32(stock_fp32.curves, ours_fp32.curves)
        checks += as_close_as_stock(stock_fp32.curves, stock.curves, ours.curves)
    for check in checks:
        _print(check.text)
    agree = all(check.passed for check in checks)
    _print(
        "the patched trainer agrees with the stock trainer on this data"
        if agree
        else "the patched trainer DIFFERS from the stock trainer: set recipe.patches='off' and "
        "report the difference"
    )
    return 0 if agree else 1


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


LOSS_LIMIT = 1e-5
"""Maximum relative difference between the two trainers' losses of a step in fp32. The trainers sum
in different orders, so their losses differ slightly."""
NORM_LIMIT = 1e-5
"""Maximum relative difference between the two trainers' gradient norms of a step in fp32; measured
differences are 1e-7 to 2e-6."""
FACTOR = 1.5
FLOOR = {"loss": 1e-4, "gradient norm": 5e-3}
"""Minimum for the stock trainer's bf16 error: a smaller measured error is replaced by this value.
With few rows, the measured error may be tiny by chance (docs/contributing/log)."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    losses: list[float]
    grad_norms: list[float]
    """Gradient norms of all steps; empty without clipping, because only clipping computes norms."""


@dataclass(frozen=True, kw_only=True)
class CurveCheck:
    """Result of comparing the loss curves, or the curves of gradient norms, of the two trainers."""

    text: str
    passed: bool


def same_in_fp32(stock: Curves, ours: Curves) -> list[CurveCheck]:
    """Compare the two trainers' losses and gradient norms of every step in fp32."""
    return [
        _check(f"largest relative difference of the {what}", max(_relative(b, a)), limit)
        for what, a, b, limit in (
            ("loss", stock.losses, ours.losses, LOSS_LIMIT),
            ("gradient norm", stock.grad_norms, ours.grad_norms, NORM_LIMIT),
        )
        if a
    ]


def as_close_as_stock(truth: Curves, stock: Curves, ours: Curves) -> list[CurveCheck]:
    """Check that our trainer's bf16 error is at most FACTOR times the stock trainer's bf16 error.
    If the stock trainer's error is below FLOOR, it counts as FLOOR."""
    checks = []
    for what, exact, a, b in (
        ("loss", truth.losses, stock.losses, ours.losses),
        ("gradient norm", truth.grad_norms, stock.grad_norms, ours.grad_norms),
    ):
        if exact:
            own = _rms(_relative(a, exact))
            text = f"RMS error of the bf16 {what}, relative to fp32: stock trainer "
            text += f"{scientific(own)}, ours"
            checks.append(_check(text, _rms(_relative(b, exact)), FACTOR * max(own, FLOOR[what])))
    return checks


def _check(text: str, value: float, limit: float) -> CurveCheck:
    passed = value <= limit
    return CurveCheck(
        text=f"{text} {scientific(value)} ({'within' if passed else 'MORE THAN'} {limit:.1e})",
        passed=passed,
    )


def _relative(values: Sequence[float], exact: Sequence[float]) -> list[float]:
    """Return the relative difference from `exact` for each of `values`; NaN becomes infinity."""
    differences = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(values, exact, strict=True)]
    return [math.inf if math.isnan(value) else value for value in differences]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))
