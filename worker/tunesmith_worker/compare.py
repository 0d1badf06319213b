"""`tunesmith run RUN_DIR --compare-stock N`: the same first N steps twice, with our kernels and
with the stock trainer, on the user's own data; both curves side by side and a verdict.

Each side is a trainer of its own in a run directory of its own; RUN_DIR is only read.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tunesmith_schema import EventKind, RunEvent, RunResult, RunSpec

TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "bf16_error_word": 2e-2, "bf16_sr8": 2e-2}
"""How far losses may lie apart, relative. fp32: rounding of sums in another order, grown over some
steps. bf16: both sides round to 8 bits, each in its own places."""


@dataclass(frozen=True, kw_only=True)
class Side:
    losses: list[float]
    tokens_per_second: float | None
    """Median over the steps after the first."""
    precision: str
    patched: str
    """What was replaced, in words."""


def compare_stock(folder: Path, steps: int) -> int:
    """Prints the comparison; 0 when the curves agree, 1 when not or when a side fails."""
    spec = RunSpec.model_validate_json((folder / "spec.json").read_bytes())
    ours = spec.recipe.patches if spec.recipe.patches != "off" else "auto"
    if spec.recipe.lora is not None and spec.recipe.lora.lora_dropout:
        sys.stdout.write("without lora_dropout: rows without padding draw other masks\n")
        spec = _without_dropout(spec)
    with tempfile.TemporaryDirectory() as scratch:
        sides = {}
        for name, patches in (("stock", "off"), ("ours", ours)):
            run = _prepared(Path(scratch) / name, folder, spec, {"patches": patches}, steps)
            sys.stdout.write(f"{name}: {steps} steps ...\n")
            sys.stdout.flush()
            if (failure := _train(run)) is not None:
                sys.stdout.write(f"{name} failed: {failure}\n")
                return 1
            sides[name] = _read(run)
    return _report(sides["stock"], sides["ours"])


def _prepared(
    run: Path, folder: Path, spec: RunSpec, change: dict[str, object], steps: int
) -> Path:
    """A run directory with the same data and seed, `steps` steps, and nothing but training."""
    data = run / spec.training_file
    data.parent.mkdir(parents=True)
    data.symlink_to((folder / spec.training_file).resolve())
    recipe = spec.recipe.model_copy(update={**change, "max_steps": steps, "logging_steps": 1})
    again = spec.model_copy(
        update={
            "recipe": recipe,
            "validation_file": None,
            # A relative path means a folder seen from where the user stands.
            "model_path": _absolute(spec.model_path),
        }
    )
    (run / "spec.json").write_text(again.model_dump_json(), encoding="utf-8")
    return run


def _without_dropout(spec: RunSpec) -> RunSpec:
    assert spec.recipe.lora is not None
    lora = spec.recipe.lora.model_copy(update={"lora_dropout": 0.0})
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"lora": lora})})


def _absolute(model_path: str) -> str:
    return str(Path(model_path).resolve()) if Path(model_path).is_dir() else model_path


def _train(run: Path) -> str | None:
    """None, or why it failed."""
    command = [sys.executable, "-m", "tunesmith_worker.run", str(run)]
    with (run / "trainer.log").open("wb") as log:
        status = subprocess.run(command, stdout=log, stderr=log).returncode
    if status == 0:
        return None
    if (run / "result.json").exists():
        error = RunResult.model_validate_json((run / "result.json").read_bytes()).error
        if error is not None:
            return error.message
    return f"status {status}\n{(run / 'trainer.log').read_text(errors='replace')[-2000:]}"


def _read(run: Path) -> Side:
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [RunEvent.model_validate_json(line) for line in lines]
    points = [e.data for e in events if e.kind == EventKind.METRICS and "train_loss" in e.data]
    speeds = sorted(float(str(p["tokens_per_second"])) for p in points[1:])
    settled = {e.data["name"]: e.data["value"] for e in events if e.kind == EventKind.CHOICE}
    given = RunSpec.model_validate_json((run / "spec.json").read_bytes()).recipe.precision
    return Side(
        losses=[float(str(point["train_loss"])) for point in points],
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        precision=str(settled.get("precision", given)),
        patched=next((e.message for e in events if e.message.startswith("patched ")), "nothing"),
    )


def _report(stock: Side, ours: Side) -> int:
    """Prints both curves and the verdict; the exit status."""
    out = sys.stdout
    pairs = list(zip(stock.losses, ours.losses, strict=True))
    worst = max(abs(a - b) / max(abs(a), 1e-12) for a, b in pairs)
    out.write(f"{ours.patched}\n\n  step      stock       ours   difference\n")
    for step, (a, b) in enumerate(pairs, start=1):
        out.write(f"{step:6d} {a:10.6f} {b:10.6f}   {b - a:+.2e}\n")
    if stock.tokens_per_second and ours.tokens_per_second:
        ratio = ours.tokens_per_second / stock.tokens_per_second
        out.write(
            f"\ntokens per second: stock {stock.tokens_per_second:,.0f}, ours "
            f"{ours.tokens_per_second:,.0f} ({ratio:.2f}x)\n"
        )
    limit = TOLERANCE[ours.precision]
    agree = worst <= limit
    out.write(
        f"largest relative difference of the loss: {worst:.1e} "
        f"({'within' if agree else 'MORE THAN'} {limit:.0e}, the bound for {ours.precision})\n"
        + ("the patched trainer equals the stock one on this data\n" if agree else "")
    )
    return 0 if agree else 1
