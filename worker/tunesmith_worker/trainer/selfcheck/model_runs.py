"""Runs of the model on a small batch, and context managers that change the model for such runs.

Possible changes of the model are a perturbed or disabled adapter, stock modules, fewer layers, or
fp32 weights. All changes of the model are undone exactly, by restoring the original memory of each
tensor.
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

PERTURBATION = 0.02
"""Standard deviation of the noise on LoRA's B; the noise changes weights by a few per cent."""


@dataclass(frozen=True, kw_only=True)
class ModelRun:
    """Results of one forward pass, and of its backward pass if any."""

    log_probs: torch.Tensor
    """Log-probability of each label, [N] fp32 on the CPU, in row order."""
    gradients: dict[str, torch.Tensor]
    """Gradients of the mean loss; the keys are parameter names. Empty without a backward pass."""

    @property
    def loss(self) -> float:
        return float(-self.log_probs.double().mean())


def run_batch(trainer: Untyped, batch: Batch, *, backward: bool = False) -> ModelRun:
    model = trainer.model
    inputs = batch_to_device(batch, trainer.args.device)
    with (
        torch.set_grad_enabled(backward),
        trainer.accelerator.autocast(),
        batch_layout(inputs.pop(LAYOUT)),
    ):
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
    labelled = (inputs["labels"][:, 1:] != IGNORED).flatten()
    log_probs = outputs.log_probs.flatten()
    gradients = {}
    if backward:
        (-log_probs.sum() / labelled.sum()).backward()
        gradients = pop_gradients(model)
    return ModelRun(log_probs=log_probs.detach()[labelled].float().cpu(), gradients=gradients)


def pop_gradients(model: Untyped) -> dict[str, torch.Tensor]:
    """Remove the model's gradients and return them; the keys are parameter names."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad
            parameter.grad = None
    return gradients


def run_single_rows(trainer: Untyped, batches: Sequence[Batch]) -> ModelRun:
    """Run batches of one row each. Return the result that a single batch of all rows would give."""
    log_probs: list[torch.Tensor] = []
    gradients: dict[str, torch.Tensor] = {}
    for batch in batches:
        run = run_batch(trainer, batch, backward=True)
        log_probs.append(run.log_probs)
        for name, gradient in run.gradients.items():  # the loss is a mean over the row's labels
            whole = gradient.float() * len(run.log_probs)
            gradients[name] = gradients[name].add_(whole) if name in gradients else whole
    labels = sum(map(len, log_probs))
    return ModelRun(
        log_probs=torch.cat(log_probs),
        gradients={name: gradient.div_(labels) for name, gradient in gradients.items()},
    )


@contextmanager
def restored_state(model: Untyped, device: torch.device) -> Iterator[None]:
    """Run the `with` block without dropout and recomputation, then restore the model's state.

    Modes, buffers, gradients and random number generators are restored. Weights are not restored.
    """
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]
    trains = [(p, p.requires_grad) for p in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
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
def perturbed_adapter(
    model: Untyped, layer: str = "", size: float = PERTURBATION
) -> Iterator[None]:
    """Within this block, add noise to LoRA's B, so that A gets a gradient and the output changes.

    `layer`: substring in the names of modules to change. `size`: standard deviation of the noise.
    """
    generator = torch.Generator().manual_seed(0)
    adapters = [(name, p) for name, p in model.named_parameters() if ".lora_B." in name]
    before = [(p, p.data) for name, p in adapters if layer in name]
    try:
        for parameter, data in before:
            noise = torch.randn(data.shape, generator=generator) * size
            parameter.data = data + noise.to(data.device, data.dtype)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


@contextmanager
def zeroed_adapter(model: Untyped) -> Iterator[None]:
    """Within this block, set LoRA's B to zero, the value before the first step."""
    before = [(p, p.data) for name, p in model.named_parameters() if ".lora_B." in name]
    try:
        for parameter, data in before:
            parameter.data = torch.zeros_like(data)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


@contextmanager
def disabled_adapter(model: Untyped) -> Iterator[None]:
    """Disable the adapter within the `with` block."""
    with warnings.catch_warnings():
        # PEFT warns of trained biases, but before the first step they equal the base biases.
        warnings.filterwarnings("ignore", "Careful, disabling adapter layers", UserWarning)
        with model.disable_adapter():
            yield


@contextmanager
def stock_modules(patched: Patched | None) -> Iterator[None]:
    """Run the `with` block without our kernels."""
    if patched is None:
        yield
        return
    patched.undo()
    try:
        yield
    finally:
        patched.redo()


@contextmanager
def patched_modules(patched: Patched) -> Iterator[None]:
    """Run the `with` block with our kernels. Use this block inside a `stock_modules` block."""
    patched.redo()
    try:
        yield
    finally:
        patched.undo()


@contextmanager
def only_first_layers(model: Untyped, count: int) -> Iterator[None]:
    """Within this block, the model has only its first `count` layers.

    Only the first layers can be kept, because layer types and masks depend on the layer index.
    """
    backbone = backbone_of(model)
    layers = backbone.layers
    backbone.layers = layers[:count]
    try:
        yield
    finally:
        backbone.layers = layers


@contextmanager
def in_fp32(model: Untyped) -> Iterator[None]:
    """Convert all 16-bit tensors to fp32 within the `with` block.

    Undo the model's patches first, because the fused weights of a patched model would be in memory
    twice.
    """
    tensors = (*model.parameters(), *model.buffers())
    before = [(t, t.data) for t in tensors if t.dtype in (torch.bfloat16, torch.float16)]
    with ExitStack() as stack:
        for tensor, data in before:
            stack.callback(setattr, tensor, "data", data)
            tensor.data = data.float()
        yield


def backbone_of(model: Untyped) -> Untyped:
    """Return the transformer without the language-model head."""
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    return causal.base_model
