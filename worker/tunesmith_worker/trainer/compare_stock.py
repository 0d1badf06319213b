"""`tunesmith run RUN_DIR --compare-stock N`: the same first N steps with our kernels and with the
stock trainer, on the user's own data; both curves side by side and a verdict.

Each side is a trainer of its own in a run directory of its own; RUN_DIR is only read. In bf16 both
sides train once more in fp32, which verdict.py explains.
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
from tunesmith_schema.renames import read_stored
from tunesmith_worker.rundir.errors import print_failure
from tunesmith_worker.rundir.spec import EXIT_UNUSABLE, UnusableRunDirectory, read_spec

THE_USERS = (ErrorCategory.USER, ErrorCategory.DATA)


_DRAWS = JobFailure(
    category=ErrorCategory.USER,
    code=ErrorCode.RECIPE_INVALID,
    message="--compare-stock is for supervised runs: two reinforcement runs draw completions of "
    "their own, and part with the first token that differs.",
    hint="A reinforcement run holds its rollouts, loss and gradients to stock transformers before "
    "step 1: leave recipe.self_check on.",
)


@dataclass(frozen=True, kw_only=True)
class Side:
    curves: Curves
    tokens_per_second: float | None
    """Median over the steps after the first."""
    precision: str
    patched: str
    """What was replaced, in words."""


class SideFailed(Exception):
    def __init__(self, name: str, failure: JobFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure.model_copy(update={"message": f"{name}: {failure.message}"})


def compare_stock(folder: Path, steps: int) -> int:
    """Prints the comparison; 0 when the curves agree, 1 when not or when a side fails, 2 when
    RUN_DIR is at fault: its spec.json, its data, its model."""
    try:
        spec = read_spec(folder.resolve())
    except UnusableRunDirectory as error:
        print_failure(error.failure)
        return EXIT_UNUSABLE
    if spec.method == "reinforcement":
        print_failure(_DRAWS)
        return EXIT_UNUSABLE
    ours = spec.recipe.patches if spec.recipe.patches != "off" else "auto"
    if spec.recipe.lora is not None and spec.recipe.lora.lora_dropout:
        _print("without lora_dropout: rows without padding draw other masks")
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
                "bf16 rounds each side in its own places: both once more in fp32, which takes as "
                "long again or longer, and twice the memory for weights"
            )
            return _report(
                stock,
                mine,
                trained("stock in fp32", patches="off", precision="fp32"),
                trained("ours in fp32", patches=ours, precision="fp32"),
            )
    except SideFailed as error:
        print_failure(error.failure)
        return EXIT_UNUSABLE if error.failure.category in THE_USERS else 1


def _prepare(run: Path, folder: Path, spec: RunSpec, change: dict[str, object], steps: int) -> None:
    """A run directory with the same data and seed, `steps` steps, and nothing but training."""
    data = run / spec.training_file
    data.parent.mkdir(parents=True)
    data.symlink_to((folder / spec.training_file).resolve())
    fixed: dict[str, object] = {"max_steps": steps, "logging_steps": 1}
    fixed |= {"early_stopping": None, "keep": "last"}  # there is no validation file
    fixed |= {"self_check": False}  # a fault is to be seen in the curves
    if spec.recipe.packing == "auto":
        fixed["packing"] = (
            False  # a padded batch, which measuring may prefer, proves nothing of ours
        )
    recipe = spec.recipe.model_copy(update={**change, **fixed})
    again = spec.model_copy(
        update={
            "recipe": recipe,
            "validation_file": None,
            # A relative path means a folder seen from where the user stands.
            "model_path": _absolute(spec.model_path),
        }
    )
    (run / "spec.json").write_text(again.model_dump_json(), encoding="utf-8")


def _without_dropout(spec: RunSpec) -> RunSpec:
    assert spec.recipe.lora is not None
    lora = spec.recipe.lora.model_copy(update={"lora_dropout": 0.0})
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"lora": lora})})


def _absolute(model_path: str) -> str:
    return str(Path(model_path).resolve()) if Path(model_path).is_dir() else model_path


def _train(run: Path) -> JobFailure | None:
    """None, or why it failed."""
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
    settled = {e.data["name"]: e.data["value"] for e in events if e.kind == EventKind.CHOICE}
    given = read_stored(RunSpec, (run / "spec.json").read_bytes()).recipe.precision
    measured = all(point.get("grad_norm") is not None for point in points)
    return Side(
        curves=Curves(
            losses=[_number(point["train_loss"]) for point in points],
            grad_norms=[_number(point["grad_norm"]) for point in points] if measured else [],
        ),
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        precision=str(settled.get("precision", given)),
        patched=next((e.message for e in events if e.message.startswith("patched ")), "nothing"),
    )


def _number(value: JsonValue) -> float:
    """Events have null for what is not finite."""
    return float("nan") if value is None else float(str(value))


def _report(
    stock: Side, ours: Side, stock_fp32: Side | None = None, ours_fp32: Side | None = None
) -> int:
    """Prints both curves and the verdict; the exit status."""
    _print(f"{ours.patched}\n\n  step      stock       ours   difference")
    pairs = zip(stock.curves.losses, ours.curves.losses, strict=True)
    for step, (a, b) in enumerate(pairs, start=1):
        _print(f"{step:6d} {a:10.6f} {b:10.6f}   {b - a:+.2e}")
    if stock.tokens_per_second and ours.tokens_per_second:
        ratio = ours.tokens_per_second / stock.tokens_per_second
        _print(
            "\ntokens per second of wall time, one after the other: "
            f"stock {stock.tokens_per_second:,.0f}, ours {ours.tokens_per_second:,.0f} "
            f"({ratio:.2f}x)"
        )
    if stock_fp32 is None or ours_fp32 is None:
        findings = same_in_fp32(stock.curves, ours.curves)
    else:
        _print("in fp32, both sides:")
        findings = same_in_fp32(stock_fp32.curves, ours_fp32.curves)
        findings += as_close_as_stock(stock_fp32.curves, stock.curves, ours.curves)
    for finding in findings:
        _print(finding.text)
    agree = all(finding.passed for finding in findings)
    _print(
        "the patched trainer equals the stock one on this data"
        if agree
        else "the patched trainer DIFFERS from the stock one: train with recipe.patches='off', and "
        "report this"
    )
    return 0 if agree else 1


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


LOSS_LIMIT = 1e-5
"""Sums in another order, grown over some steps."""
NORM_LIMIT = 1e-5
"""Measured: 1e-7 to 2e-6."""
FACTOR = 1.5
FLOOR = {"loss": 1e-4, "gradient norm": 5e-3}
"""bf16 rounding on little data, where stock may be near fp32 by luck: docs/contributing/log."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    losses: list[float]
    grad_norms: list[float]
    """Empty where nothing is clipped: nothing measures them then."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One bound and how it was met."""

    text: str
    passed: bool


def same_in_fp32(stock: Curves, ours: Curves) -> list[Finding]:
    """Every step's loss and gradient norm, relative."""
    return [
        _finding(f"largest relative difference of the {what}", max(_apart(b, a)), limit)
        for what, a, b, limit in (
            ("loss", stock.losses, ours.losses, LOSS_LIMIT),
            ("gradient norm", stock.grad_norms, ours.grad_norms, NORM_LIMIT),
        )
        if a
    ]


def as_close_as_stock(truth: Curves, stock: Curves, ours: Curves) -> list[Finding]:
    """Distances from the truth: ours at most FACTOR times stock's, or times the floor."""
    found = []
    for what, exact, a, b in (
        ("loss", truth.losses, stock.losses, ours.losses),
        ("gradient norm", truth.grad_norms, stock.grad_norms, ours.grad_norms),
    ):
        if exact:
            own = _rms(_apart(a, exact))
            text = f"bf16's distance of the {what} from stock in fp32: stock {own:.1e}, ours"
            found.append(_finding(text, _rms(_apart(b, exact)), FACTOR * max(own, FLOOR[what])))
    return found


def _finding(text: str, value: float, limit: float) -> Finding:
    passed = value <= limit
    return Finding(
        text=f"{text} {value:.1e} ({'within' if passed else 'MORE THAN'} {limit:.1e})",
        passed=passed,
    )


def _apart(values: Sequence[float], exact: Sequence[float]) -> list[float]:
    """Relative; infinite where a value is no number, which is close to nothing."""
    apart = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(values, exact, strict=True)]
    return [math.inf if math.isnan(one) else one for one in apart]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(one * one for one in values) / len(values))
