"""Measure training steps of one trainer (ours, stock TRL or Liger) for sft.py and families.py.

Prints one JSON line for each model.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import datasets
import peft
import torch
import transformers
import trl

RECOMPUTE = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in trl.SFTConfig.__dataclass_fields__
)
"""Name of the training option that recomputes activations. Transformers 5.17 has only
`gradient_checkpointing`."""
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

SIZES: dict[str, dict[str, int]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 352},
}
"""Additional sizes in the configuration of tiny models with experts, keyed by model type."""


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--side", choices=["ours", "stock-packing", "stock-default", "liger"])
    arguments.add_argument(
        "--models",
        nargs="+",
        help="measure a tiny model of each of these model types (default: one Llama of 12.4 M "
        "parameters); the program waits for a line on stdin before each model",
    )
    arguments.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments.add_argument("--tuning", choices=["lora", "full"], default="lora")
    arguments.add_argument("--steps", type=int, default=6)
    arguments.add_argument("--warm-up", type=int, default=2)
    arguments.add_argument("--pack", type=int, default=1024, help="tokens in a pack")
    arguments.add_argument(
        "--batch",
        type=int,
        default=2,
        help="packs per step; without packing, a step has 4 times as many rows",
    )
    arguments.add_argument("--profile", action="store_true")
    return arguments


def make_model(dtype: torch.dtype) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(dtype)


def make_tiny(model_type: str, dtype: torch.dtype) -> Any:
    """Make a random model of a model type with 4 layers and a hidden size of 256."""
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        **{"attention_dropout": 0.0, "residual_dropout": 0.0},
        **SIZES.get(model_type, {}),
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


def make_rows(tokens: int) -> Any:
    """Make random rows of 32 to 768 tokens (log-uniform), with at least `tokens` tokens in
    total."""
    draw = random.Random(0)
    rows: list[list[int]] = []
    while sum(map(len, rows)) < tokens:
        length = round(math.exp(draw.uniform(math.log(32), math.log(768))))
        rows.append([draw.randrange(8192) for _ in range(length)])
    return datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})


class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._mark()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.cpu.append(time.process_time() - self._cpu)
        self.wall.append(time.perf_counter() - self._wall)
        self._mark()

    def _mark(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()


def watch_memory() -> float:
    """Reset the peak. Return the used memory in MiB: allocated memory on a GPU, otherwise resident
    memory."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def most_memory() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resident("VmHWM")


def resident(field: str) -> float:
    """Return VmRSS or VmHWM of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def main() -> None:
    arguments = parser().parse_args()
    if arguments.models is None:
        print(json.dumps(measure(arguments, None)), flush=True)
        return
    for model_type in arguments.models:
        if not sys.stdin.readline():
            return  # the parent has ended
        gc.collect()  # frees the previous trainer, which has reference cycles
        print(json.dumps(measure(arguments, model_type)), flush=True)


def measure(arguments: argparse.Namespace, model_type: str | None) -> dict[str, Any]:  # Any: JSON
    """Train a model with the trainer that `--side` selects, and return the results. `model_type`:
    None for the Llama."""
    dtype = getattr(torch, arguments.dtype)
    full, ours = arguments.tuning == "full", arguments.side == "ours"
    loaded = torch.float32 if full else dtype
    model = make_tiny(model_type, loaded) if model_type else make_model(loaded)
    if not full:
        lora = peft.LoraConfig(
            task_type="CAUSAL_LM", r=32, lora_alpha=16, target_modules="all-linear"
        )
        torch.manual_seed(1)
        model = peft.get_peft_model(model, lora)
    packing = arguments.side != "stock-default"
    rows = make_rows(arguments.steps * arguments.batch * arguments.pack * 2)
    if packing:
        rows = trl.pack_dataset(rows, arguments.pack, "bfd")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(), pad_token="0", eos_token="1"
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.SFTTrainer(
            model=model,
            args=trl.SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=arguments.batch * (1 if packing else 4),
                max_steps=arguments.steps,
                packing=packing,
                max_length=arguments.pack if packing else None,
                dataset_kwargs={"skip_prepare_dataset": True},
                **{RECOMPUTE: False},
                learning_rate=1e-3,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                bf16=full and dtype == torch.bfloat16,
                use_cpu=not torch.cuda.is_available(),
                dataloader_pin_memory=False,
                seed=3,
                use_liger_kernel=arguments.side == "liger",
            ),
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        idle = watch_memory()  # measured before our kernels load, so that their memory counts
        patched = ""
        if ours:
            from tunesmith_worker.engine.patches import patch
            from tunesmith_worker.rundir.process import keep_freed_memory

            keep_freed_memory()

            patched = patch(trainer.model).report.summary()
        if arguments.profile:
            _profiled(trainer)
        else:
            trainer.train()
    history = trainer.state.log_history
    tokens = [entry["num_tokens"] for entry in history if "num_tokens" in entry and "loss" in entry]
    done = [b - a for a, b in zip([0, *tokens], tokens, strict=False)]
    skip = arguments.warm_up
    return {
        "side": arguments.side,
        "patched": patched,
        "tokens_per_cpu_second": sum(done[skip:]) / sum(clock.cpu[skip:]),
        "tokens_per_second": sum(done[skip:]) / sum(clock.wall[skip:]),
        "warm_up_cpu_seconds": clock.cpu[:skip],
        "idle_mib": idle,
        "peak_above_idle_mib": most_memory() - idle,
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
    }


def _profiled(trainer: Any) -> None:
    from torch.profiler import profile

    with profile() as run:
        trainer.train()
    sys.stderr.write(run.key_averages().table(sort_by="self_cpu_time_total", row_limit=40))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({str(i): i for i in range(8192)}, unk_token="0"))


if __name__ == "__main__":
    main()
