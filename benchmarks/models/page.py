"""Write docs/reference/models.md from results/models.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .configs import architectures

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "models.json"
PAGE = ROOT / "docs" / "reference" / "models.md"

Row = dict[str, Any]  # Any: JSON

INTRO = """# Models

Generated from `benchmarks/results/models.json` by `python -m benchmarks.models`; do not edit.

Transformers {version} has causal language models of {known} types; {tried} were tried so far. For
each type, a small random model was trained with LoRA, with all weights and with GRPO, on a CPU in
fp32. The losses of LoRA and full tuning were compared with stock TRL on the same rows. The largest
relative difference of a step's loss is {largest:.0e} (limit 1e-5).

- **fast**: our kernels compute the layers. `attention` and `MLP` name the halves of a layer.
- **stock**: the layers of transformers are used. Training is as fast as with stock TRL, or faster
  because of our loss head.
- **refused**: the run ends before the first step. The notes name the cause.
- **failed**: the self-check or the read-back of the result ends the run. The notes name the cause.

With GRPO, our rollout engine generates the completions for most fast models. For all other models,
transformers generates them, which is slower. Models with dropout in their layers are not fast.
"""

_NOTES = """
## Notes

**Own logits**: TRL's fused head multiplies the last hidden state by the head's weight. These models
compute their logits in another way, so the run uses the logits of the model's own forward pass.
Its loss is compared with the cross entropy of these logits instead of TRL's loss.

**What the fast path would need** is read from the names of a layer's modules.
"""


def read_rows() -> list[Row]:
    rows: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return rows


def page(rows: Sequence[Row]) -> str:
    built = [row for row in rows if "not_built" not in row]
    runs = [row[method] for row in built for method in ("lora", "full") if method in row]
    largest = max((run["difference"] or 0.0 for run in runs), default=0.0)
    states = Counter(row["lora"]["state"] for row in built if "lora" in row)
    count = ", ".join(f"{states[state]} {state}" for state in ("fast", "stock", "refused"))
    parts = [
        INTRO.format(
            version=_version(rows), known=len(architectures()), tried=len(rows), largest=largest
        ),
        f"Small models of {len(built)} types were made. With LoRA: {count}.\n",
        "| model type | class | LoRA | full | GRPO | what the fast path would need |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in sorted(built, key=lambda row: row["model_type"])),
        _NOTES,
        *_refusals(built),
        *_not_built([row for row in rows if "not_built" in row]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _version(rows: Sequence[Row]) -> str:
    return max((row.get("transformers", "") for row in rows), default="")


def _line(row: Row) -> str:
    cells = [_cell(row.get(method)) for method in ("lora", "full", "grpo")]
    needs = "" if _complete(row) else "; ".join(row["needs"])
    if row.get("lora", {}).get("own_logits"):
        needs = "; ".join(filter(None, ["own logits", needs]))
    return f"| `{row['model_type']}` | {row['class']} | {' | '.join(cells)} | {needs} |"


def _complete(row: Row) -> bool:
    detail = row.get("lora", {}).get("detail", "").partition(";")[0]
    return "attention_block" in detail and "mlp_block" in detail


def _cell(run: Row | None) -> str:
    if run is None:
        return "not run"
    if run["state"] != "fast":
        return str(run["state"])
    patched = run["detail"].partition(";")[0]
    halves = {"attention_block": "attention", "mlp_block": "MLP"}
    return "fast: " + ", ".join(name for part, name in halves.items() if part in patched)


def _refusals(rows: Sequence[Row]) -> list[str]:
    lines = ["## Refused\n", "| model type | method | reason |", "|---|---|---|"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for method in ("lora", "full", "grpo"):
            run = row.get(method)
            if run is not None and run["state"] not in ("fast", "stock"):
                text = run["detail"].split("\n")[0].replace("|", "/").replace(row["class"], "CLASS")
                reasons.setdefault((method, text[:300]), []).append(row["model_type"])
    for (method, text), types in sorted(reasons.items()):
        names = ", ".join(f"`{name}`" for name in types)
        shown = text if len(types) > 1 else text.replace("CLASS", names)
        lines.append(f"| {names} | {method} | {shown} |")
    return [*lines, ""]


def _not_built(rows: Sequence[Row]) -> list[str]:
    lines = ["## Types without a small model\n", "| model type | error |", "|---|---|"]
    for row in sorted(rows, key=lambda row: row["model_type"]):
        lines.append(f"| `{row['model_type']}` | {row['not_built'].replace('|', '/')} |")
    return [*lines, ""] if rows else []
