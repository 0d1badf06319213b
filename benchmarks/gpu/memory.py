"""Part `memory`: predicted and measured memory.

The benchmark part has these cases.

`MODEL/ROWSxLENGTH/MODE`: Predicted and measured peak memory and pinned memory of a micro-batch.
`MODEL/offload`: Step time with offloading / step time with recomputation. With offloading, every
    layer except the last offloads its input.
`MODEL/long`: The memory plan's prediction for one row of 80,000 tokens. The benchmark trains on
    this row if the prediction is at most 80 GB.

The models have random bf16 weights, LoRA r 16 on all linear layers, and our kernels.
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from typing import Any

from tunesmith_worker.rundir.process import quick_imports

with quick_imports():
    import torch

    from tunesmith_schema import PROJECTIONS, LoraRecipe
    from tunesmith_worker.engine.memory import shapes
    from tunesmith_worker.engine.memory.choose import FreeMemory, Planner
    from tunesmith_worker.engine.memory.estimate import Policy, predict
    from tunesmith_worker.engine.memory.free_memory import host_free, measure_speed
    from tunesmith_worker.engine.memory.parameter_sizes import read_tuning
    from tunesmith_worker.engine.memory.probe import run_probe
    from tunesmith_worker.engine.memory.recompute import LayerModes
    from tunesmith_worker.engine.memory.retry import micro_batch_of
    from tunesmith_worker.engine.patches import patch
    from tunesmith_worker.trainer.auto.memory_plan import mechanisms_of

    from .models import CONFIGS
    from .parity import packed_batch, prepared
    from .serving import Case, serve
    from .timing import median_seconds

Untyped = Any  # Any: transformers is not typed
Result = dict[str, Any]  # Any: JSON

GRID = ((1, 4096), (4, 1024), (2, 8192))
MODELS = ("qwen2.5-1.5b", "llama-3.1-8b")
TINY, TINY_GRID = ("tiny-llama",), ((3, 64), (2, 128))
CARD = 80 * 10**9
LONG = {"tiny-llama": 256}
OFFLOADED = {"tiny-llama": (2, 64)}


class PatchedModel:
    """Model with our kernels, and a batch of rows of equal length."""

    def __init__(self, name: str, device: torch.device, rows: int, length: int) -> None:
        self.model, _ = prepared(name, device, torch.bfloat16)
        report = patch(self.model).report
        self.modes = LayerModes(self.model)
        self.batch = packed_batch((length,) * rows, self.model.config.vocab_size, device)
        self.shape = shapes.shape_of(self.model.config)
        self.tuning = read_tuning(self.model, self.shape, full=False, precision="bf16")
        ours = mechanisms_of(report, self.shape.layers)
        self.engine = shapes.Engine(ours=ours, on_gpu=device.type == "cuda", passes=1)
        self.size = micro_batch_of(self.batch, count_labels=True)

    def apply(self, policy: Policy) -> None:
        layers = self.shape.layers
        self.modes.set([policy.mode_of(layer, layers) for layer in range(layers)])

    def loss(self) -> torch.Tensor:
        value: torch.Tensor = self.model(**self.batch, fused_lm_head=True, use_cache=False).loss
        return value

    def step(self) -> object:
        self.loss().backward()
        self.model.zero_grad(set_to_none=True)
        return None


def policies(layers: int) -> dict[str, Policy]:
    return {
        "keep": Policy(keep=layers),
        "half": Policy(keep=layers // 2),
        "recompute": Policy(keep=0),
        "offload": Policy(keep=0, offload=layers - 1),
    }


def peak(name: str, rows: int, length: int, mode: str, device: torch.device) -> Result:
    """Predict and measure the peak memory of one case. `error` is predicted peak / measured peak -
    1."""
    patched = PatchedModel(name, device, rows, length)
    policy = policies(patched.shape.layers)[mode]
    patched.apply(policy)
    prediction = predict(patched.shape, patched.tuning, patched.size, patched.engine, policy)
    probe = run_probe(patched.model, patched.modes.layers, patched.loss)
    resident = patched.tuning.weights + patched.tuning.adapter
    held, predicted = resident + probe.peak, prediction.peak - prediction.items.get("optimizer", 0)
    return {
        "predicted_bytes": predicted,
        "held_bytes": held,
        "error": predicted / held - 1,
        "moment": prediction.moment,
        "items": prediction.items,
        "pinned_predicted_bytes": prediction.pinned_host,
        "pinned_bytes": _pinned_peak(),
        "recomputes": sum(counts.recomputes for counts in patched.modes.counts),
        "offloads": sum(counts.offloads for counts in patched.modes.counts),
    }


def offload(name: str, device: torch.device) -> Result:
    """Measure `overhead`: time with offloading / time with recomputation - 1. `passed` is True if
    every layer except the last offloaded its input."""
    rows, length = OFFLOADED.get(name, (1, 4096))
    patched = PatchedModel(name, device, rows, length)
    patched.modes = LayerModes(patched.model, min_offloaded_tokens=1)
    both = policies(patched.shape.layers)

    def run(mode: str) -> object:
        patched.apply(both[mode])
        return patched.step()

    runs = {mode: partial(run, mode) for mode in ("recompute", "offload")}
    seconds = median_seconds(runs, device, 10 if device.type == "cuda" else 1)
    run("offload")
    planner = Planner(
        shape=patched.shape,
        tuning=patched.tuning,
        batch=patched.size,
        engine=patched.engine,
        memory=FreeMemory(free=1 << 50, host_free=host_free(), on_gpu=patched.engine.on_gpu),
        speed=measure_speed(device) if device.type == "cuda" else None,
    )
    free = planner.offload_is_free()
    overhead = seconds["offload"] / seconds["recompute"] - 1
    offloads = [counts.offloads for counts in patched.modes.counts]
    return {
        "hidden": patched.shape.hidden,
        "tokens": patched.size.tokens,
        "seconds": seconds,
        "overhead": overhead,
        "planner_calls_it_free": free,
        "offloads": offloads,
        "passed": sum(offloads) >= patched.shape.layers - 1,
    }


def long(name: str, device: torch.device) -> Result:
    """Predict the memory of one long row. Train on the row if the prediction is at most 80 GB.
    `passed` is True if the prediction is above 80 GB, or if the measured peak is at most 80 GB."""
    tokens = LONG.get(name, 80_000)
    config = CONFIGS[name]()
    config.max_position_embeddings = max(config.max_position_embeddings, tokens)
    shape = shapes.shape_of(config)
    planner = Planner(
        shape=shape,
        tuning=shapes.lora(shape, LoraRecipe(r=16), list(PROJECTIONS), bf16=True),
        batch=shapes.MicroBatch(
            rows=1, longest=tokens, tokens=tokens, labelled=tokens, padded=False
        ),
        engine=shapes.Engine(
            ours=frozenset({"attention_block", "mlp_block", "loss"}),
            on_gpu=device.type == "cuda",
            passes=1,
        ),
        memory=FreeMemory(free=CARD, host_free=host_free(), on_gpu=device.type == "cuda"),
    )
    option = planner.choose()
    answer: Result = {
        "fits": option.fits,
        "budget_bytes": planner.memory.budget,
        "predicted_bytes": option.prediction.peak,
        "items": option.prediction.items,
        "keep": option.policy.keep,
        "offload": option.policy.offload,
    }
    if not option.fits:
        return answer | {"passed": True}
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CARD / total), device)
    patched = PatchedModel(name, device, 1, tokens)
    patched.apply(option.policy)
    probe = run_probe(patched.model, patched.modes.layers, patched.loss)
    held = patched.tuning.weights + patched.tuning.adapter + probe.peak
    return answer | {"held_bytes": held, "passed": held <= CARD}


def _pinned_peak() -> int | None:
    if not torch.cuda.is_available() or not hasattr(torch.cuda, "host_memory_stats"):
        return None
    return int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))


def cases(device: torch.device) -> dict[str, Case]:
    tiny = device.type != "cuda"
    by_name: dict[str, Case] = {}
    for name in TINY if tiny else MODELS:
        for rows, length in TINY_GRID if tiny else GRID:
            for mode in policies(2):
                run = partial(peak, name, rows, length, mode, device)
                by_name[f"{name}/{rows}x{length}/{mode}"] = partial(_alone, run)
        by_name[f"{name}/offload"] = partial(_alone, partial(offload, name, device))
    longest = (TINY if tiny else MODELS)[-1]
    by_name[f"{longest}/long"] = partial(_alone, partial(long, longest, device))
    return by_name


def _alone(run: Case) -> Result:
    gc.collect()  # frees the previous model, which has reference cycles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        # Otherwise pinned memory of earlier cases would count in the peak of this case.
        if hasattr(torch._C, "_host_emptyCache"):
            torch._C._host_emptyCache()
        if hasattr(torch.cuda, "reset_peak_host_memory_stats"):
            torch.cuda.reset_peak_host_memory_stats()
    return run()


if __name__ == "__main__":
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sys.exit(serve(cases(where)))
