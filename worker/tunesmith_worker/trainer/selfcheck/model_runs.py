"""Passes of a small batch through the model that leave no trace, and what may differ meanwhile:
the adapter moved or off, our kernels out, fewer layers, fp32 weights. All of it is undone exactly:
weights by giving back the memory they had.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import peft
import torch

from tunesmith_worker.engine.patches.batch_layout import batch_layout
from tunesmith_worker.engine.patches.patch import Patched
from tunesmith_worker.trainer.data.tokens import IGNORED
from tunesmith_worker.trainer.methods.batches import LAYOUT, Batch, batch_to_device

Untyped = Any  # Any: transformers, PEFT and TRL are not typed

MOVED = 0.02
"""Standard deviation of what a moved adapter's B has: it then weighs a few per cent of W."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    log_probs: torch.Tensor
    """[N] fp32 on the host: of each label, rows in order."""
    gradients: dict[str, torch.Tensor]
    """Of what trains, by name, as the mean over labels gives them; empty without a backward."""

    @property
    def loss(self) -> float:
        return float(-self.log_probs.double().mean())


def run_pass(trainer: Untyped, batch: Batch, *, backward: bool = False) -> Pass:
    model = trainer.model
    inputs = batch_to_device(batch, trainer.args.device)
    with (
        torch.set_grad_enabled(backward),
        trainer.accelerator.autocast(),
        batch_layout(inputs.pop(LAYOUT)),
    ):
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
    labelled = (inputs["labels"][:, 1:] != IGNORED).flatten()
    found = outputs.log_probs.flatten()
    gradients = {}
    if backward:
        (-found.sum() / labelled.sum()).backward()
        gradients = take_gradients(model)
    return Pass(log_probs=found.detach()[labelled].float().cpu(), gradients=gradients)


def take_gradients(model: Untyped) -> dict[str, torch.Tensor]:
    """By name; the model is left without."""
    taken = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            taken[name] = parameter.grad
            parameter.grad = None
    return taken


def run_alone(trainer: Untyped, batches: Sequence[Batch]) -> Pass:
    """Batches of one row each, as one pass over all rows."""
    log_probs: list[torch.Tensor] = []
    gradients: dict[str, torch.Tensor] = {}
    for batch in batches:
        one = run_pass(trainer, batch, backward=True)
        log_probs.append(one.log_probs)
        for name, gradient in one.gradients.items():  # each a mean over its own labels
            whole = gradient.float() * len(one.log_probs)
            gradients[name] = gradients[name].add_(whole) if name in gradients else whole
    labels = sum(map(len, log_probs))
    return Pass(
        log_probs=torch.cat(log_probs),
        gradients={name: one.div_(labels) for name, one in gradients.items()},
    )


@contextmanager
def undisturbed(model: Untyped, device: torch.device) -> Iterator[None]:
    """Inside, the model has no dropout and recomputes nothing; afterwards its modes, buffers,
    gradients and all random numbers are as if nothing had been."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]
    trains = [(p, p.requires_grad) for p in model.parameters()]
    buffers = [(one, one.clone()) for one in model.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model.eval()
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for parameter, wanted in trains:
                parameter.requires_grad_(wanted)
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


@contextmanager
def adapter_moved(model: Untyped, layer: str = "", size: float = MOVED) -> Iterator[None]:
    """Inside, LoRA's B has random numbers added, so that A has a gradient and the output moves.
    `layer`: of modules whose name has it. `size`: the numbers' standard deviation."""
    draw = torch.Generator().manual_seed(0)
    moving = [(name, p) for name, p in model.named_parameters() if ".lora_B." in name]
    before = [(p, p.data) for name, p in moving if layer in name]
    try:
        for parameter, data in before:
            noise = torch.randn(data.shape, generator=draw) * size
            parameter.data = data + noise.to(data.device, data.dtype)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


@contextmanager
def adapter_zeroed(model: Untyped) -> Iterator[None]:
    """Inside, LoRA's B is zero: what it was before any step."""
    before = [(p, p.data) for name, p in model.named_parameters() if ".lora_B." in name]
    try:
        for parameter, data in before:
            parameter.data = torch.zeros_like(data)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


@contextmanager
def adapter_off(model: Untyped) -> Iterator[None]:
    """Inside, the base model alone computes."""
    with warnings.catch_warnings():
        # Biases that train along have not moved yet: the base model is what it was.
        warnings.filterwarnings("ignore", "Careful, disabling adapter layers", UserWarning)
        with model.disable_adapter():
            yield


@contextmanager
def stock(patched: Patched | None) -> Iterator[None]:
    """Inside, the model runs without our kernels."""
    if patched is None:
        yield
        return
    patched.undo()
    try:
        yield
    finally:
        patched.redo()


@contextmanager
def ours_again(patched: Patched) -> Iterator[None]:
    """Within `stock`: our kernels, on what the model is there."""
    patched.redo()
    try:
        yield
    finally:
        patched.undo()


@contextmanager
def first_layers(model: Untyped, count: int) -> Iterator[None]:
    """Inside, the model has its first `count` layers only; their kinds come in an order, and masks
    go by it."""
    backbone = backbone_of(model)
    layers = backbone.layers
    backbone.layers = layers[:count]
    try:
        yield
    finally:
        backbone.layers = layers


@contextmanager
def in_fp32(model: Untyped) -> Iterator[None]:
    """Inside, all of its 16-bit numbers are the same in fp32. Not for a patched model: its fused
    weights would be held twice."""
    tensors = (*model.parameters(), *model.buffers())
    before = [(t, t.data) for t in tensors if t.dtype in (torch.bfloat16, torch.float16)]
    with ExitStack() as back:
        for tensor, data in before:
            back.callback(setattr, tensor, "data", data)
            tensor.data = data.float()
        yield


def backbone_of(model: Untyped) -> Untyped:
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    return causal.base_model
