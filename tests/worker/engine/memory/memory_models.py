"""Llama for memory tests, and the memory that its step holds. It is so large that its tensors are
larger than all constant overhead."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

import peft
import torch
import transformers
from trl.trainer.utils import add_fused_lm_head

from tunesmith_schema import PROJECTIONS, PatchName, Precision
from tunesmith_worker.engine.memory.estimate import Policy
from tunesmith_worker.engine.memory.parameter_sizes import read_tuning
from tunesmith_worker.engine.memory.probe import Probe, run_probe
from tunesmith_worker.engine.memory.recompute import LayerModes
from tunesmith_worker.engine.memory.retry import micro_batch_of
from tunesmith_worker.engine.memory.shapes import Engine, MicroBatch, ModelShape, Tuning, shape_of
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.patches.patch import MECHANISMS
from tunesmith_worker.trainer.auto.memory_plan import mechanisms_of

Untyped = Any  # Any: transformers is not typed


def llama(*, tied: bool = True) -> Untyped:
    config = transformers.LlamaConfig(
        vocab_size=2048,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    return transformers.LlamaForCausalLM(config)


class Measured:
    """Measurement of one setting: the shape of the model, and the memory that its step held."""

    def __init__(
        self,
        model: Untyped,
        *,
        full: bool = False,
        bf16: bool = False,
        ours: bool | set[PatchName] = True,
        keep: int | None = None,
        dropout: float = 0.0,
        rows: int = 3,
        length: int = 128,
        tokens: list[int] | None = None,
        whole: bool = False,
        quantized: bool = False,
        precision: Precision | None = None,
    ) -> None:
        """`tokens`: trained rows of the embedding. `whole`: the whole embedding and head are
        trained."""
        self.shape: ModelShape = shape_of(model.config)
        if not full:
            model = peft.get_peft_model(
                model.to(torch.bfloat16) if bf16 and not quantized else model,
                peft.LoraConfig(
                    task_type="CAUSAL_LM",
                    r=8,
                    lora_dropout=dropout,
                    target_modules=[n for n in PROJECTIONS if _has(model, n)] or "all-linear",
                    trainable_token_indices=tokens,
                    modules_to_save=["embed_tokens", "lm_head"] if whole else None,
                ),
            )
        causal = model.get_base_model() if not full else model
        add_fused_lm_head(causal)
        names: Collection[str] = MECHANISMS if ours is True else ours or ()
        patched = patch(model, names).report if names else None
        modes = LayerModes(model)
        layers = self.shape.layers
        self.policy = Policy(keep=layers if keep is None else keep)
        modes.set([self.policy.mode_of(layer, layers) for layer in range(layers)])
        batch = _packed(rows, length) if ours else _padded(rows, length)
        autocast = torch.autocast("cpu", torch.bfloat16) if full and bf16 else nullcontext()

        def loss() -> torch.Tensor:
            with autocast:
                output = model(**batch, fused_lm_head=True, use_cache=False)
            found: torch.Tensor = output.loss
            return found

        self.probe: Probe = run_probe(model, modes.layers, loss)
        self.tuning: Tuning = read_tuning(
            model, self.shape, full=full, precision=precision or ("bf16" if bf16 else "fp32")
        )
        self.batch: MicroBatch = micro_batch_of(batch, count_labels=True)
        self.engine = Engine(ours=mechanisms_of(patched, self.shape.layers), on_gpu=False, passes=1)


def _has(model: Untyped, name: str) -> bool:
    return any(path.endswith(name) for path, _ in model.named_modules())


def _packed(rows: int, length: int) -> dict[str, Untyped]:
    ids = torch.randint(3, 131, (1, rows * length))
    bounds = torch.arange(rows + 1, dtype=torch.int32) * length
    return {
        "input_ids": ids,
        "labels": ids.clone(),
        "position_ids": torch.arange(length).repeat(rows)[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": length,
        "max_length_k": length,
    }


def _padded(rows: int, length: int) -> dict[str, Untyped]:
    ids = torch.randint(3, 131, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    return {
        "input_ids": ids,
        "labels": ids.masked_fill(mask == 0, -100),
        "attention_mask": mask,
    }
