"""Measure ways to load a new adapter into a rollout engine, for rollout.py.

Prints one JSON line. `--side` selects a way to load the adapter. Merged weights are base weights
plus adapter. `fold` writes merged weights into the training weights, and restores the training
weights after the rollout. `merged` writes merged weights to the native engine's copy. `vllm-merged`
loads merged weights into vLLM. `vllm-lora` passes the matrices A and B to vLLM, which applies them
at each token. The first sync is not counted. The time of a sync is the shortest time of the next
four syncs. The speed is from the fastest of three rollouts of 8 rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rollout import WAYS
from benchmarks.rollout_engines import requests
from benchmarks.rollout_side import GROUP, NEW, with_lora

Untyped = Any  # Any: transformers and vLLM are not typed

RANK = 32
SYNCS, ROLLOUTS = 5, 3


def native(model: Untyped, layout: Any) -> tuple[Callable[[], float], Callable[[], object], int]:
    from tunesmith_worker.engine.rollout import NativeEngine, RolloutPlan

    engine = NativeEngine(model, RolloutPlan(weights=layout, max_rows=GROUP))
    one = requests(1, 1, 1, model.config.vocab_size)

    def sync() -> float:
        engine.generate(one)
        return float(engine.figures.sync.cpu_seconds)

    many = requests(GROUP, 16, NEW, model.config.vocab_size)
    # Folding writes each weight twice: the merged weight before the rollout, and the original
    # weight after the rollout.
    times = 2 if layout == "in_place" else 1
    return sync, lambda: engine.generate(many), times * adapted_bytes(model)


def vllm_merged(model: Untyped) -> tuple[Callable[[], float], Callable[[], object], int]:
    from tunesmith_worker.engine.rollout import RolloutPlan
    from tunesmith_worker.engine.rollout.vllm import VLLMEngine
    from tunesmith_worker.engine.rollout.vllm.weights import PolicyWeights

    engine = VLLMEngine(model, RolloutPlan(weights="merged", max_rows=GROUP, row_tokens=16 + NEW))
    many = requests(GROUP, 16, NEW, model.config.vocab_size)
    engine.generate(many)

    def sync() -> float:
        assert engine._vllm is not None
        start = time.process_time()
        engine._vllm.load()
        return time.process_time() - start

    sizes = [tensor.nbytes for _, tensor in PolicyWeights(model).trained()]
    return sync, lambda: engine.generate(many), sum(sizes)


def vllm_lora(model: Untyped) -> tuple[Callable[[], float], Callable[[], object], int]:
    """Return functions for a sync and for a rollout, and the bytes of the adapter. vLLM has random
    base weights, because its speed does not depend on the values of the weights."""
    from tunesmith_worker.engine.rollout import RolloutPlan
    from tunesmith_worker.engine.rollout.vllm.colocated import ENVIRONMENT, ColocatedVLLM
    from tunesmith_worker.engine.rollout.vllm.wire import sampling_arguments
    from tunesmith_worker.rundir.process import set_environment

    set_environment(ENVIRONMENT)
    import vllm
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.lora.request import LoRARequest

    plain = vllm.LLM
    vllm.LLM = lambda **options: plain(
        **options, enable_lora=True, max_lora_rank=RANK, max_loras=1, max_cpu_loras=1
    )
    plan = RolloutPlan(weights="merged", max_rows=GROUP, row_tokens=16 + NEW)
    llm = ColocatedVLLM(model, plan)._llm
    vllm.LLM = plain
    config = model.peft_config["default"]
    helper = PEFTHelper(
        r=RANK, lora_alpha=config.lora_alpha, target_modules=[*config.target_modules]
    )

    def tensors() -> dict[str, torch.Tensor]:
        return {
            name.replace(".default", ""): parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if "lora_" in name
        }

    def load(_: object) -> Untyped:
        return LoRAModel.from_lora_tensors(1, tensors(), helper, device="cpu", dtype=model.dtype)

    def replace_loader(worker: Untyped) -> None:
        worker.model_runner.lora_manager._load_adapter = load

    llm.collective_rpc(replace_loader)
    adapter = LoRARequest("a", 1, "in-memory", load_inplace=True)

    def sync() -> float:
        start = time.process_time()
        assert llm.llm_engine.add_lora(adapter)
        llm.reset_prefix_cache()
        return time.process_time() - start

    many = requests(GROUP, 16, NEW, model.config.vocab_size)
    prompts = [{"prompt_token_ids": [*one.prompt_ids]} for one in many]
    params = [vllm.SamplingParams(**sampling_arguments(one)) for one in many]
    loaded = LoRARequest("a", 1, "in-memory")
    sizes = [tensor.nbytes for tensor in tensors().values()]

    def rollout() -> object:
        return llm.generate(prompts, params, use_tqdm=False, lora_request=loaded)

    return sync, rollout, sum(sizes)


def adapted_bytes(model: Untyped) -> int:
    """Return the number of bytes of all weights that have an adapter."""
    return sum(
        int(module.get_base_layer().weight.nbytes)
        for module in model.modules()
        if hasattr(module, "lora_A")
    )


def measure(way: str, model: Untyped) -> dict[str, Any]:  # Any: JSON
    with torch.no_grad():
        if way.startswith("vllm"):
            sync, rollout, size = (vllm_lora if way == "vllm-lora" else vllm_merged)(model)
        else:
            sync, rollout, size = native(model, "in_place" if way == "fold" else "merged")
        syncs = [sync() for _ in range(SYNCS)]
        rollout()
        seconds = []
        for _ in range(ROLLOUTS):
            start = time.process_time()
            rollout()
            seconds.append(time.process_time() - start)
    return {
        "way": way,
        "sync_cpu_seconds": round(min(syncs[1:]), 4),
        "bytes": size,
        "tokens_per_cpu_second": round(GROUP * NEW / min(seconds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", required=True, choices=WAYS)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    from tunesmith_worker.rundir.process import keep_freed_memory

    keep_freed_memory()
    print(json.dumps(measure(options.side, with_lora(getattr(torch, options.dtype)))))


if __name__ == "__main__":
    main()
