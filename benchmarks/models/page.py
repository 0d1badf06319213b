"""Write docs/reference/models.md from results/models.json."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from .configs import architectures

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "models.json"
PAGE = ROOT / "docs" / "reference" / "models.md"

Row = dict[str, Any]  # Any: JSON

METHODS = {"lora": "LoRA", "full": "full", "grpo": "GRPO"}
HALVES = {"attention_block": "attention", "mlp_block": "MLP"}
REASON = 140
"""Maximum number of characters of a reason; the results file has the whole message."""

INTRO = """# Models

Look up whether your model's type (`model_type` in its `config.json`) trains, and how fast.
Generated from `benchmarks/results/models.json` by `python -m benchmarks.models`; do not edit.

Transformers {version} has causal language models of {known} types; {tried} were tried so far. For
each type, a small random model was trained with LoRA, with all weights and with GRPO, on a CPU in
fp32. The losses of LoRA and full tuning equal those of stock TRL on the same rows: a step's loss
differs by at most {largest:.0e} (limit 1e-5).

Small models of {made} types were made. With LoRA: {counts}.
GRPO is slower on models without our kernels, because transformers generates their completions.
GRPO is also slower on [some fast models](../explanation/kernels.md#families).
"""

_LISTS = {
    "fast": (
        "## Fast\n",
        "Our kernels compute the layers. Models with dropout in their layers train with stock "
        "layers.\n",
    ),
    "stock": (
        "\n## Stock\n",
        "The layers of transformers are used. Training is as fast as with stock TRL, or faster "
        "because of our loss head.\n",
    ),
}

_EXCEPTIONS = """
## Exceptions

A **refused** run ends before the first step. In a **failed** run, the self-check fails, or the
saved result differs from the trained model.

| model type | methods | result | reason |
|---|---|---|---|"""


def read_rows() -> list[Row]:
    rows: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return rows


def page(rows: Sequence[Row]) -> str:
    built = sorted((row for row in rows if "not_built" not in row), key=_type)
    runs = [row[method] for row in built for method in METHODS if method in row]
    largest = max((run["difference"] or 0.0 for run in runs), default=0.0)
    states = Counter(row["lora"]["state"] for row in built)
    parts = [
        INTRO.format(
            version=max((row.get("transformers", "") for row in rows), default=""),
            known=len(architectures()),
            tried=len(rows),
            largest=largest,
            made=len(built),
            counts=", ".join(f"{count} {state}" for state, count in states.most_common()),
        ),
        *_LISTS["fast"],
        *(_names(types, f"- **{halves}**: ") for halves, types in sorted(_fast(built).items())),
        *_LISTS["stock"],
        _names([row for row in built if row["lora"]["state"] == "stock"]),
        _own_logits([row for row in built if row["lora"].get("own_logits")]),
        _EXCEPTIONS,
        *_exceptions(built),
        *_not_built([row for row in rows if "not_built" in row]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _type(row: Row) -> str:
    return str(row["model_type"])


def _names(rows: Sequence[Row], start: str = "") -> str:
    text = start + ", ".join(f"`{_type(row)}`" for row in rows)
    indent = "  " if start else ""
    return fill(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _fast(rows: Sequence[Row]) -> dict[str, list[Row]]:
    types: dict[str, list[Row]] = {}
    for row in rows:
        if row["lora"]["state"] == "fast":
            patched = row["lora"]["detail"].partition(";")[0]
            halves = " and ".join(name for part, name in HALVES.items() if part in patched)
            types.setdefault(halves, []).append(row)
    return types


def _own_logits(rows: Sequence[Row]) -> str:
    return (
        "\nThese types compute their logits in their own way, so the run uses the logits of the "
        f"model's forward pass\ninstead of our loss head:\n{_names(rows)}"
        if rows
        else ""
    )


def _exceptions(rows: Sequence[Row]) -> list[str]:
    """Rows of the table of refused and failed runs; equal reasons share a row."""
    causes: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        for method in METHODS:
            run = row.get(method)
            if run is not None and run["state"] not in ("fast", "stock"):
                cause = run["state"], _reason(row, run["detail"])
                causes.setdefault(cause, {}).setdefault(_type(row), []).append(METHODS[method])
    lines = []
    for (state, reason), types in causes.items():
        by_methods: dict[str, list[str]] = {}
        for name, methods in types.items():
            by_methods.setdefault(", ".join(methods), []).append(f"`{name}`")
        lines += [
            f"| {', '.join(names)} | {methods} | {state} | {reason} |"
            for methods, names in by_methods.items()
        ]
    return lines


def _reason(row: Row, detail: str) -> str:
    text = detail.split("\n")[0].replace("|", "/").replace("<", "").replace(">", "")
    text = text.replace(f"`{row['class']}`", "the model").replace(row["class"], "the model")
    text = re.sub(r"^(Self-check before the first step: |Model 'model' |Step 1: )", "", text)
    number = r"(?:(?: by| of)? [\d.]+e[+-]\d+| by(?: only)? 0(?= ))"
    text = re.sub(rf"{number}(?: \(\w+(?: [\d.e+-]+)?\))?", "", text)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= REASON else text[: text.rindex(" ", 0, REASON)] + " ..."


def _not_built(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["\n## Types without a small model\n", "| model type | error |", "|---|---|"]
    for row in sorted(rows, key=_type):
        lines.append(f"| `{_type(row)}` | {_cut(row['not_built'].replace('|', '/'))} |")
    return lines
