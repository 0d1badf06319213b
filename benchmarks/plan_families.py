"""Check memory predictions of several families: `python -m benchmarks.plan_families`.

Each of the 30 settings trains two steps of a small random model on a CPU: six families, in fp32,
bf16, `bf16_split_master`, and bf16 over an NF4 base. `predicted` is the prediction of the run's
memory plan after the trial pass (one forward and backward pass before training). `tensors` is the
peak of tensor bytes in a run under torch's profiler. The prediction must be within 10 % or 32 MiB
of `tensors`, whichever is more.

`reported` is the memory report at the end of a second run, without the profiler. A prediction
outside the limits is a miss. A miss is silent if the memory report does not mention the miss. The
exit status is 1 if a prediction is a miss. `--write` writes benchmarks/results/plan_families.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .service_parts.machine import cpu_model

RESULT = Path(__file__).parent / "results" / "plan_families.json"
BAR, BAR_BYTES = 0.10, 32 * 2**20
"""Largest allowed error of a prediction: BAR times the measured tensor bytes, or BAR_BYTES if this
is more."""
FAMILIES = ("llama", "qwen3", "gemma2", "phi3", "olmo2", "mixtral")
_SIZES: dict[str, dict[str, int]] = {
    "tiny": {"vocab_size": 384, "hidden_size": 64, "intermediate_size": 128},
    "small": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768},
}
_KINDS: list[dict[str, Any]] = [  # Any: arguments of a run
    {"tuning": "lora", "precision": "bf16", "size": "tiny", "rows": 2, "length": 64},
    {"tuning": "lora", "precision": "bf16", "size": "small", "rows": 2, "length": 192},
    {"tuning": "full", "precision": "bf16_split_master", "size": "small", "rows": 1, "length": 96},
    {"tuning": "lora", "precision": "fp32", "size": "small", "rows": 3, "length": 256},
    {"tuning": "lora", "precision": "bf16", "size": "small", "rows": 2, "length": 128}
    | {"quantization": "nf4"},
]
SETTINGS = [
    {"family": family, **kind, "checkpointing": False} for family in FAMILIES for kind in _KINDS
]


def make_model(setting: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return a random model of a setting, and the names of its projections. Any: transformers is
    untyped."""
    import torch
    import transformers

    from tunesmith_schema import PROJECTIONS

    kind = {
        "llama": transformers.LlamaConfig,
        "qwen3": transformers.Qwen3Config,
        "gemma2": transformers.Gemma2Config,
        "phi3": transformers.Phi3Config,
        "olmo2": transformers.Olmo2Config,
        "mixtral": transformers.MixtralConfig,
    }[setting["family"]]
    settings: dict[str, Any] = {
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": _SIZES[setting["size"]]["hidden_size"] // 8,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **_SIZES[setting["size"]],
    }
    if setting["family"] == "mixtral":
        settings |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**settings))
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    dtype = torch.float32 if setting["precision"] == "fp32" else torch.bfloat16
    model = model.to(dtype)
    if "quantization" in setting:
        model = quantized(model, setting["quantization"])
    return model, [name for name in PROJECTIONS if name in names]


def quantized(model: Any, kind: Any) -> Any:  # Any: transformers is untyped
    """Return a copy of a bf16 model with a quantised base."""
    import torch
    import transformers

    from tunesmith_worker.engine.model.quantization import fix_nf4_layout, quantization_config

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            quantization_config=quantization_config(kind, torch.bfloat16),
            dtype=torch.bfloat16,
        )
    fix_nf4_layout(loaded)
    return loaded


def measure(setting: dict[str, Any]) -> dict[str, Any]:
    """Return the predicted and the measured peak of one setting, in bytes."""
    import gc

    import torch

    from tunesmith_worker.engine.memory.parameter_sizes import storage_bytes
    from tunesmith_worker.engine.memory.probe import measure_peak
    from tunesmith_worker.engine.model.quantization import scales

    from .plan import run_once

    reported = report_of(setting)
    trainer, plan = run_once(setting, train=False)
    gc.collect()
    model = trainer.model
    weights = storage_bytes([*model.parameters(), *model.buffers(), *scales(model)])
    with measure_peak(torch.device("cpu")) as held:
        trainer.train()
    prediction = plan.planner.option(plan.steps.policy).prediction
    tensors = weights + held.peak
    within = abs(prediction.tensors - tensors) <= max(BAR * tensors, BAR_BYTES)
    return {
        **setting,
        "predicted": prediction.tensors,
        "tensors": tensors,
        "error": prediction.tensors / tensors - 1,
        "within_bar": within,
        "reported": reported,
        "silent": not within and bool(reported["within_tolerance"]),
        "moment": prediction.moment,
        "items": prediction.items,
    }


def report_of(setting: dict[str, Any]) -> dict[str, Any]:
    """Train a setting without the profiler. Return the memory values from the memory report of the
    run."""
    from tunesmith_worker.rundir.events import EventLog

    from .plan import run_once

    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(
            Path(folder) / "events.jsonl", on_event=lambda event: events.append(event.data)
        )
        trainer, plan = run_once(setting, train=False, events=log)
        plan.training_started()
        trainer.train()
        plan.report()
    (report,) = (data for data in events if "within_tolerance" in data)
    names = ("predicted_tensor_bytes", "tensor_bytes", "within_tolerance")
    return {name: report[name] for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    import torch

    cases = []
    for setting in SETTINGS:
        cases.append(measure(setting))
        print(line(cases[-1]), file=sys.stderr, flush=True)
    result = {
        "benchmark": "plan_families",
        "worst_error": max(abs(case["error"]) for case in cases),
        "missed": sum(not case["within_bar"] for case in cases),
        "silent": sum(case["silent"] for case in cases),
        "bars": {"share": BAR, "bytes": BAR_BYTES},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "torch": torch.__version__,
        "settings": cases,
    }
    print(json.dumps(result))
    if options.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if not result["missed"] else 1


def precision_of(case: dict[str, Any]) -> str:
    """Return the precision, or the format of a quantised base."""
    return str(case.get("quantization", case["precision"]))


def line(case: dict[str, Any]) -> str:
    """Format one setting as a row of a Markdown table."""
    mib = 2**20
    return (
        f"| {case['family']} | {case['size']} | {case['tuning']} | {precision_of(case)} "
        f"| {case['rows']} x {case['length']} | {case['predicted'] / mib:.1f} "
        f"| {case['tensors'] / mib:.1f} | {case['error']:+.1%} | {case['moment']} |"
    )


if __name__ == "__main__":
    sys.exit(main())
