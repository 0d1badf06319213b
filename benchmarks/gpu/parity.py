"""Part `parity`: loss and gradients of a model with our kernels, compared with the stock model.

The stock model is the transformers model without our kernels, with PEFT's LoRA and TRL's loss head.
In fp32 without TF32, each gradient may differ from the gradient of the stock model by a relative
RMS of at most 1e-5. In bf16 with PEFT's fp32 adapters, errors are differences from the results in
fp32. For each kind of tensor, our error over all layers must be at most 1.5 times the error of the
stock model.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from functools import partial
from typing import Any

from tunesmith_worker.rundir.process import quick_imports

with quick_imports():
    import peft
    import torch
    from trl.trainer.utils import add_fused_lm_head

    from tunesmith_schema import PROJECTIONS
    from tunesmith_worker.engine.patches import patch

    from ..worst import as_error
    from .models import random_model, with_large_gradients
    from .serving import Case, serve

Untyped = Any  # Any: transformers, PEFT and TRL are not typed
Gradients = dict[str, torch.Tensor]

REAL, TINY = ("qwen2.5-0.5b", "llama-3.2-1b"), ("tiny-llama", "tiny-qwen")
LENGTHS, TINY_LENGTHS = (1024, 300, 17, 1, 1500, 1254), (40, 1, 23, 9)
FP32_LIMIT, BF16_FACTOR, LEAST_GRADIENT = 1e-5, 1.5, 1e-2


def fp32(name: str, device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Compare a model with our kernels and the stock model in fp32. `worst` is the largest relative
    RMS difference of a gradient."""
    model, batch = prepared(name, device, torch.float32)
    stock = step(model, batch)
    patched = patch(model)
    ours = step(model, batch)
    errors = {key: as_error(relative_rms(ours[key], stock[key])) for key in stock if key != "loss"}
    tensor = max(errors, key=lambda key: errors[key])
    sizes = sorted(float(grad.square().mean().sqrt()) for grad in stock.values() if grad.dim() == 2)
    result: dict[str, Any] = {
        "patched": patched.report.summary(),
        "loss_difference": relative_rms(ours["loss"], stock["loss"]),
        "worst": errors[tensor],
        "worst_tensor": tensor,
        "median_gradient": sizes[len(sizes) // 2],
        "smallest_gradient": sizes[0],
    }
    passed = result["worst"] <= FP32_LIMIT and result["loss_difference"] <= FP32_LIMIT
    enough = result["median_gradient"] >= LEAST_GRADIENT
    return result | {"passed": passed and enough and not patched.report.unchanged}


def bf16(name: str, device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Compare in bf16. `worst` is our error divided by the error of the stock model, for the kind
    of tensor with the largest ratio."""
    model, batch = prepared(name, device, torch.bfloat16)
    stock = step(model, batch)
    patched = patch(model)
    ours = step(model, batch)
    summary = patched.report.summary()
    patched.undo()
    truth = step(model.float(), batch)
    errors = {
        side: pooled({key: relative_rms(gradients[key], truth[key]) for key in truth})
        for side, gradients in (("ours", ours), ("stock", stock))
    }
    loss = {side: kinds.pop("loss") for side, kinds in errors.items()}
    quotients = {
        kind: as_error(errors["ours"][kind] / error) for kind, error in errors["stock"].items()
    }
    kind = max(quotients, key=lambda key: quotients[key])
    return {
        "patched": summary,
        "worst": quotients[kind],
        "worst_tensor": kind,
        "quotients": {key: round(quotient, 3) for key, quotient in quotients.items()},
        "loss_error": loss,
        "passed": quotients[kind] <= BF16_FACTOR and not patched.report.unchanged,
    }


CHECKS = {"fp32": fp32, "bf16": bf16}


def prepared(
    name: str, device: torch.device, dtype: torch.dtype
) -> tuple[Untyped, dict[str, Untyped]]:
    """Make a model with LoRA r 16 on all linear layers and TRL's head, and a packed batch. The LoRA
    matrices A and B are random, so that both get nonzero gradients."""
    model = with_large_gradients(random_model(name, device, dtype))
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM", r=16, lora_alpha=16, target_modules=list(PROJECTIONS)
    )
    model = peft.get_peft_model(model, lora)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.normal_(std=0.1)
    add_fused_lm_head(model.get_base_model(), outputs=("log_probs", "entropy", "is_top1"))
    lengths = TINY_LENGTHS if name in TINY else LENGTHS
    return model, packed_batch(lengths, model.config.vocab_size, device)


def packed_batch(
    lengths: tuple[int, ...], vocabulary: int, device: torch.device
) -> dict[str, Untyped]:
    """Make random packed rows in the format of TRL's padding-free collator. A third of the tokens
    has no label."""
    draw, total = torch.Generator().manual_seed(2), sum(lengths)
    ids = torch.randint(vocabulary, (1, total), generator=draw)
    labels = ids.masked_fill(torch.rand(1, total, generator=draw) < 0.33, -100)
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    labels[0, ends[:-1].long()] = -100
    return {
        "input_ids": ids.to(device),
        "labels": labels.to(device),
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None].to(device),
        "cu_seq_lens_q": ends.to(device),
        "cu_seq_lens_k": ends.to(device),
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        # With divisor 1, the loss is a sum over the labels, so that gradients are large.
        "num_items_in_batch": torch.tensor(1, device=device),
    }


def step(model: Untyped, batch: dict[str, Untyped]) -> Gradients:
    """Compute `loss`, and the gradient of every trainable tensor, keyed by the tensor's name."""
    model.zero_grad()
    output = model(**batch, fused_lm_head=True)
    output.loss.backward()
    parameters = model.named_parameters()
    gradients = {name: p.grad.clone() for name, p in parameters if p.grad is not None}
    model.zero_grad()
    return gradients | {"loss": output.loss.detach()}


def relative_rms(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the RMS of `actual - truth` divided by the RMS of `truth`; NaN if a tensor has NaN."""
    return float((actual.double() - truth.double()).norm() / truth.double().norm())


def pooled(errors: dict[str, float]) -> dict[str, float]:
    """Return the RMS error over all layers for each kind of tensor, because errors of single layers
    are noisy."""
    squares: dict[str, list[float]] = defaultdict(list)
    for name, error in errors.items():
        kind = re.sub(r".*layers\.\d+\.|\.default\.weight", "", name)
        squares[kind].append(error**2)
    return {kind: (sum(values) / len(values)) ** 0.5 for kind, values in squares.items()}


def cases(device: torch.device) -> dict[str, Case]:
    return {
        f"{name}/{dtype}": partial(check, name, device)
        for name in (REAL if device.type == "cuda" else TINY)
        for dtype, check in CHECKS.items()
    }


def main() -> int:
    torch.set_float32_matmul_precision("highest")  # no TF32
    return serve(cases(torch.device("cuda" if torch.cuda.is_available() else "cpu")))


if __name__ == "__main__":
    sys.exit(main())
