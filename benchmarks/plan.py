"""Compare the planner's memory predictions with measured memory: `python -m benchmarks.plan`.

Each setting runs in its own process on a CPU. Twelve settings differ in the number of rows, the row
length, the tuning (LoRA or full) and the use of gradient checkpointing. Six more settings were not
used to develop the memory model. A Llama of 12.4 million parameters (sft_side.py) trains two steps
with our trainer and AdamW. Two measured values are compared with the predictions.

`tensors`: Peak bytes of tensors, including weights and optimizer; torch's profiler counts every
    allocation of a whole run.
`rss`: Weights plus the growth of resident memory (VmHWM) during training. `rss` comes from a
    separate run without the profiler, and is compared with the prediction of that run.

`predicted` is the planner's closed-form prediction. Before training, every run measures the memory
of a trial pass (one forward and backward pass). This measurement corrects the prediction;
`corrected` is the corrected prediction. The trial pass also measures the memory that the allocator
holds beyond tensors. `rss` includes this memory. The prediction must be within 10 % of `tensors`
and within 20 % of `rss`. `--write` writes benchmarks/results/plan.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from .service_parts.machine import cpu_model

RESULT = Path(__file__).parent / "results" / "plan.json"
SETTINGS: list[dict[str, Any]] = [  # Any: arguments of one side
    {"tuning": tuning, "rows": rows, "length": length, "checkpointing": checkpointing}
    for tuning, rows, length, checkpointing in [
        ("lora", 1, 512, False),
        ("lora", 4, 256, False),
        ("lora", 2, 1024, False),
        ("lora", 8, 256, "half"),
        ("lora", 1, 2048, True),
        ("lora", 4, 512, True),
        ("full", 1, 512, False),
        ("full", 4, 256, False),
        ("full", 2, 1024, False),
        ("full", 8, 256, "half"),
        ("full", 1, 2048, True),
        ("full", 4, 512, True),
    ]
]
HELD_OUT: list[dict[str, Any]] = [  # Any: arguments of one side
    {"tuning": tuning, "rows": rows, "length": length, "checkpointing": checkpointing}
    for tuning, rows, length, checkpointing in [
        ("lora", 3, 384, False),
        ("lora", 2, 768, True),
        ("lora", 6, 320, "half"),
        ("full", 3, 384, False),
        ("full", 2, 768, True),
        ("full", 6, 320, "half"),
    ]
]
"""Settings that were not used while the memory model was developed."""
BARS = {"tensors": 0.10, "rss": 0.20}
MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", help="measure one setting (JSON) in this process")
    parser.add_argument(
        "--write", action="store_true", help="write the result to benchmarks/results/plan.json"
    )
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(json.loads(options.one))))
        return 0
    env = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    results = []
    for setting in (*SETTINGS, *HELD_OUT):
        command = [sys.executable, "-m", "benchmarks.plan", "--one", json.dumps(setting)]
        done = subprocess.run(command, env=env, capture_output=True)
        if done.returncode:
            sys.exit(done.stderr.decode(errors="replace"))
        results.append(json.loads(done.stdout.decode().splitlines()[-1]))
        print(line(results[-1]), file=sys.stderr, flush=True)
    result = summary(results)
    print(json.dumps(result))
    if options.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["within_bars"] else 1


def measure(setting: dict[str, Any]) -> dict[str, Any]:
    """Measure one setting. Return the setting's predicted and measured memory in bytes."""
    import gc

    import torch

    from tunesmith_worker.engine.memory.free_memory import HostPeak
    from tunesmith_worker.engine.memory.parameter_sizes import storage_bytes
    from tunesmith_worker.engine.memory.probe import measure_peak
    from tunesmith_worker.rundir.process import keep_freed_memory

    keep_freed_memory()
    run_once({**setting, "rows": 1, "length": 64})  # loads code and constants first
    trainer, plan = run_once(setting, train=False)
    gc.collect()  # frees old trainers, which have reference cycles
    host = HostPeak()
    trainer.train()
    growth = host.growth()
    of_run = plan.planner.option(plan.steps.policy).prediction
    del trainer, plan

    trainer, plan = run_once(setting, train=False)
    gc.collect()
    weights = storage_bytes([*trainer.model.parameters(), *trainer.model.buffers()])
    with measure_peak(torch.device("cpu")) as held:
        trainer.train()
    option = plan.planner.option(plan.steps.policy)
    bare = replace(plan.planner, correction=type(plan.planner.correction)())
    predicted = bare.option(plan.steps.policy).prediction
    tensors = weights + held.peak
    resident = plan.planner.tuning.weights + plan.planner.tuning.adapter
    return {
        **setting,
        "predicted": predicted.peak,
        "held_out": setting in HELD_OUT,
        "corrected": option.prediction.tensors,
        "tensors": tensors,
        "error": predicted.peak / tensors - 1,
        "corrected_error": option.prediction.tensors / tensors - 1,
        "moment": predicted.moment,
        "items": predicted.items,
        "allocator": of_run.items.get("allocator", 0),
        "predicted_growth": of_run.peak - resident,
        "rss_growth": growth,
        # relative to the total: the peak includes memory that was resident before training
        "rss_error": None if growth is None else of_run.peak / (resident + growth) - 1,
    }


def run_once(
    setting: dict[str, Any],  # Any: arguments of one side
    *,
    train: bool = True,
    events: Any = None,  # Any: an EventLog, which is imported late
) -> tuple[Any, Any]:
    """Make our trainer and its memory plan for a setting, with rows of equal length. Run the
    training if `train` is True. `events`: log of the memory plan's events."""
    import tempfile

    import datasets
    import peft
    import torch
    import transformers

    from benchmarks import sft_side
    from tunesmith_worker.engine.model.quantization import adapter_dtype_kept
    from tunesmith_worker.engine.optimizers.choose import optimizer_for
    from tunesmith_worker.engine.patches import patch
    from tunesmith_worker.rundir.events import EventLog
    from tunesmith_worker.rundir.plan import Choices, TrainPlan
    from tunesmith_worker.trainer.auto.layout_choice import Layout, LayoutPlan
    from tunesmith_worker.trainer.auto.layouts import Layouts
    from tunesmith_worker.trainer.auto.memory_plan import MemoryPlan
    from tunesmith_worker.trainer.methods.config import sft_config
    from tunesmith_worker.trainer.methods.sft import SFTTrainer

    full, rows, length = setting["tuning"] == "full", setting["rows"], setting["length"]
    precision = setting.get("precision", "fp32")
    if "family" in setting:
        from .plan_families import make_model

        model, targets = make_model(setting)
    else:
        model, targets = sft_side.make_model(torch.float32), sft_side.PROJECTIONS
    vocabulary = model.config.vocab_size
    if not full:
        lora = peft.LoraConfig(task_type="CAUSAL_LM", r=32, target_modules=targets)
        model = peft.get_peft_model(model, lora)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocabulary, (rows * 4, length), generator=draw).tolist()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=sft_side._tokenizer(), pad_token="0", eos_token="1"
    )
    layouts = Layouts(
        LayoutPlan(
            layouts={"padding_free": Layout(kind="padding_free", rows=rows)},
            reason="set by the benchmark",
        ),
        Choices(),
    )
    train_plan = TrainPlan(
        learning_rate=1e-4,
        lr_scheduler_type="linear",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=1,
        total_steps=2,
        logging_steps=1,
        eval_steps=None,
        save_steps=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        with adapter_dtype_kept(model):
            trainer = SFTTrainer(
                model=model,
                args=sft_config(Path(folder), train_plan, seed=1),
                train_dataset=datasets.Dataset.from_dict({"input_ids": ids, "labels": ids}),
                processing_class=tokenizer,
                save=lambda step: None,
                layouts=layouts,
                optimizer_cls_and_kwargs=optimizer_for(
                    precision, full=full, learning_rate=1e-4, seed=1
                ),
            )
        trainer.remove_callback(transformers.PrinterCallback)
        half = setting["checkpointing"] == "half"
        plan = MemoryPlan(
            trainer,
            layouts,
            patch(trainer.model).report,
            checkpointing=False if half else setting["checkpointing"],
            may_split=False,
            full=full,
            precision=precision,
            choices=Choices(),
            events=events or EventLog(Path(folder) / "events.jsonl"),
            write=lambda: None,
        )
        plan.resolve()
        if half:
            layers = plan.planner.shape.layers
            plan.steps.apply(replace(plan.steps.policy, keep=layers // 2))
        if train:
            trainer.train()
    return trainer, plan


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    barred = [case for case in results if not case["held_out"]]
    held_out = [case for case in results if case["held_out"]]
    errors = [abs(case["error"]) for case in barred]
    corrected = [abs(case["corrected_error"]) for case in barred]
    rss = [abs(case["rss_error"]) for case in barred if case["rss_error"] is not None]
    return {
        "benchmark": "plan",
        "worst_error": max(errors),
        "median_error": statistics.median(errors),
        "worst_corrected_error": max(corrected),
        "worst_rss_error": max(rss, default=None),
        "worst_held_out_error": max((abs(case["error"]) for case in held_out), default=None),
        "worst_held_out_rss_error": max(
            (abs(case["rss_error"] or 0) for case in held_out), default=None
        ),
        "bars": BARS,
        "within_bars": max(errors) <= BARS["tensors"] and max(rss, default=0.0) <= BARS["rss"],
        "cpu": cpu_model(),
        "torch": torch.__version__,
        "settings": results,
    }


def line(case: dict[str, Any]) -> str:
    """Format one setting as a row of a Markdown table."""
    growth = case["rss_growth"]
    rss = "not measured" if growth is None else f"{growth / MIB:.0f} ({case['rss_error']:+.1%})"
    return (
        f"| {case['tuning']} | {case['rows']} x {case['length']} | {case['checkpointing']} "
        f"| {case['predicted'] / MIB:.1f} | {case['tensors'] / MIB:.1f} | {case['error']:+.1%} "
        f"| {case['corrected_error']:+.1%} | {rss} |"
    )


if __name__ == "__main__":
    sys.exit(main())
