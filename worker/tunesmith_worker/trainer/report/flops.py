"""FLOPs that a model needs for training, and peak FLOP/s of GPUs.

P is the number of weights in linear layers, with the head and without the embedding. P_lora is the
number of adapter weights. In full tuning, an input token needs 6 P FLOPs: 2 P in the forward pass,
and 4 P for the gradients of inputs and weights. With LoRA, an input token needs 4 P + 6 P_lora
FLOPs, because frozen weights need no gradients. Attention adds 3 x 2 L n d S FLOPs per token, with
L layers, n heads of size d, and rows of S tokens. Due to the causal mask, only half of the S^2
pairs of tokens are counted.

The formulas are from Kaplan et al. (https://arxiv.org/abs/2001.08361, section 2.1) and PaLM
(https://arxiv.org/abs/2204.02311, appendix B). The FLOPs of recomputation and of padding are not
counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

Untyped = Any  # Any: transformers is untyped

PEAK_TFLOPS: Mapping[str, float] = MappingProxyType(
    {
        "B200": 2250.0,
        "H200": 989.4,
        "H200 NVL": 835.5,
        "GH200": 989.4,
        "H100 PCIe": 756.0,
        "H100 NVL": 835.5,
        "H100": 989.4,
        "A100": 312.0,
        "A40": 149.7,
        "A30": 165.0,
        "A10": 125.0,
        "L40S": 362.1,
        "L40": 181.1,
        "L4": 121.0,
        "RTX 6000 Ada": 364.2,
        "RTX A6000": 154.8,
        "RTX 4090": 165.2,
        "RTX 3090": 71.0,
    }
)
"""Peak dense bf16 tensor-core TFLOP/s with fp32 accumulation; the keys are GPU names. Sources:
NVIDIA's data sheets; for GeForce cards, the architecture white papers (Ada, Ampere GA102). If a
data sheet gives only the value with sparsity, the value here is half of that value. The values of
B200, H200, H100 (SXM), A100 and A30 agree with secondary tables (2026-11-20; data sheets were not
available). The values of GH200, the PCIe and NVL cards, A40, A10, L40S, L40, L4 and all RTX cards
are not verified."""


def peak_tflops(gpu: str) -> float | None:
    """Return the peak TFLOP/s of a GPU; None if the GPU is not in the table.

    `gpu`: the driver's name of the GPU. If the driver's name contains several names of the table,
    the longest name is used."""
    words = f" {gpu.replace('-', ' ').replace('_', ' ')} "
    if any(part in words for part in (" Laptop ", " Max Q ", " MIG ", " D ")):
        return None  # these variants are slower than the card without the suffix
    known = [name for name in PEAK_TFLOPS if f" {name} " in words]
    return PEAK_TFLOPS[max(known, key=len)] if known else None


@dataclass(frozen=True, kw_only=True)
class FlopsShape:
    """The properties of a model that determine its FLOPs."""

    base: int
    """Number of weights in linear layers, without adapters."""
    adapter: int
    """Number of adapter weights, plus the head's weights if the whole head trains."""
    full: bool
    """True if all weights train."""
    heads_x_size: int
    """Number of attention heads times the head size."""
    windows: tuple[int | None, ...]
    """Attention window of each layer in tokens; None for full attention."""

    def flops(self, tokens: int, pairs: float) -> float:
        """Return the FLOPs of training on `tokens` tokens. `pairs`: value of
        `BatchCounts.pairs`."""
        weights = 6 * self.base if self.full else 4 * self.base + 6 * self.adapter
        return float(weights) * tokens + 6.0 * self.heads_x_size * pairs

    @property
    def formula(self) -> str:
        weights = "6 P" if self.full else "4 P + 6 P_lora"
        adapter = "" if self.full else f", P_lora = {self.adapter:,}"
        return f"{weights} + attention FLOPs per token, P = {self.base:,}{adapter}"


def model_shape(model: Untyped, *, full: bool) -> FlopsShape | str:
    """Return the model's shape, or the reason why the shape is unknown."""
    config = model.config.get_text_config()
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    if any(getattr(config, name, None) for name in experts):
        return "a mixture of experts: the number of active weights per token is not counted"
    heads, layers = (
        getattr(config, name, None) for name in ("num_attention_heads", "num_hidden_layers")
    )
    if not isinstance(heads, int) or not isinstance(layers, int):
        return f"{config.model_type}: its config does not give the number of heads and layers"
    try:
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
    except RuntimeError:  # AmbiguousGlobalPerLayerAttributeError
        return f"{config.model_type}: its layers differ in the size of attention heads"
    windows = _windows(config, layers)
    if windows is None:
        return f"{config.model_type}: not every layer has softmax attention"
    base = adapter = 0
    for name, module in model.named_modules():
        if isinstance(module, Conv1D):  # GPT-2's
            return f"{config.model_type}: its layers are not torch.nn.Linear"
        if isinstance(module, torch.nn.Linear) and ".original_module" not in name:
            weights = module.in_features * module.out_features
            if ".lora_" in name or ".modules_to_save." in name:
                adapter += weights
            else:
                base += weights
    if base == 0:
        return f"{config.model_type}: its layers are not torch.nn.Linear"
    return FlopsShape(
        base=base, adapter=adapter, full=full, heads_x_size=heads * size, windows=windows
    )


def _windows(config: Untyped, layers: int) -> tuple[int | None, ...] | None:
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    window = getattr(config, "sliding_window", None)
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    if not getattr(config, "layer_types", None) and getattr(config, "use_sliding_window", True):
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
