"""Find the modules and parameters of a model that its loss on text does not use.

A model for images and text has a vision encoder that rows of text never call. BERT has a pooler
that a language model does not read. The bias of a router may affect only the choice of experts, and
then gets no gradient. An adapter on an unused module, or training an unused parameter, would have
no effect. This module finds unused modules and parameters with a forward and a backward pass on a
few tokens. Families with our kernels use all their modules and are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from tunesmith_worker.engine.random_state import random_state, restore_random_state

from .families import is_known_model
from .own_head import own_output, sample_ids

Untyped = Any  # Any: transformers and peft are not typed


def unused_modules(causal: Untyped) -> list[str]:
    """Return the paths of the modules whose outputs do not affect the logits of a text.

    If a whole module is unused, the modules inside it are not listed. An expert counts as used if
    another expert of the same module list is used. Only the gradients of outputs are computed, so a
    large model needs little memory.
    """
    if is_known_model(causal):
        return []
    offsets: dict[str, torch.Tensor] = {}
    others: set[str] = set()
    handles = [
        module.register_forward_hook(partial(_add_zero, offsets, others, path))
        for path, module in causal.named_modules()
        if not any(True for _ in module.children())
    ]
    try:
        with _evaluating(causal), torch.enable_grad():
            total = _sum_of_logits(causal)
    finally:
        for handle in handles:
            handle.remove()
    gradients = torch.autograd.grad(total, list(offsets.values()), allow_unused=True)
    used = {path for path, grad in zip(offsets, gradients, strict=True) if grad is not None}
    reached = {path[:end] for path in used | others for end in _ends(path)}
    return list(_unreached(causal, "", reached))


def _add_zero(
    offsets: dict[str, torch.Tensor],
    others: set[str],
    path: str,
    module: Untyped,
    inputs: Untyped,
    output: Untyped,
) -> Untyped:
    """Forward hook: add a zero tensor to the output. If the zero tensor gets a gradient, the logits
    use the output.

    A module with several outputs, such as a router, is added to `others` and counts as used."""
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        others.add(path)
        return output
    if path not in offsets:
        offsets[path] = output.new_zeros((), requires_grad=True)
    return output + offsets[path]


def unused_parameters(causal: Untyped) -> list[str]:
    """Return the names of the trained parameters that get no gradient from the loss on text.

    Experts are not listed, because a few tokens do not use all experts."""
    if is_known_model(causal):
        return []
    with _evaluating(causal), torch.enable_grad():
        _sum_of_logits(causal).backward()
    unused = [
        name
        for name, parameter in causal.named_parameters()
        if parameter.requires_grad and parameter.grad is None and not _EXPERT.search(name)
    ]
    causal.zero_grad(set_to_none=True)
    return unused


def _sum_of_logits(causal: Untyped) -> torch.Tensor:
    logits = own_output(causal, input_ids=sample_ids(causal)).logits
    total: torch.Tensor = logits.float().logsumexp(-1).sum()
    return total


_EXPERT = re.compile(r"\.experts\.\d+\.")


def _ends(path: str) -> Iterator[int]:
    yield from (match.start() for match in re.finditer(r"\.", path))
    yield len(path)


def _unreached(module: torch.nn.Module, path: str, reached: set[str]) -> Iterator[str]:
    children = {f"{path}.{name}" if path else name: m for name, m in module.named_children()}
    alike = isinstance(module, torch.nn.ModuleList) and any(name in reached for name in children)
    for name, child in children.items():
        if name in reached:
            yield from _unreached(child, name, reached)
        elif not alike and any(True for _ in child.parameters()):
            yield name


@contextmanager
def _evaluating(causal: torch.nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode within this block.

    Afterwards, restore the mode and the random state, because some models use random numbers even
    in evaluation mode."""
    was_training, state = causal.training, random_state()
    causal.eval()
    try:
        yield
    finally:
        causal.train(was_training)
        restore_random_state(state)
