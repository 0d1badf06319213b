"""Weights of the trained model with the adapter merged, under the names of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import peft
import torch
from peft.utils import ModulesToSaveWrapper

from tunesmith_kernels.lora import Projection
from tunesmith_worker.engine.patches.projections import Unsupported, check_linear, read_projection
from tunesmith_worker.engine.patches.token_rows import has_token_rows, trained_rows

from ..protocol import UnsupportedModel
from ..weights import merged_weight
from .parcel import Item

Untyped = Any  # Any: transformers and peft are not typed


@dataclass(frozen=True)
class NamedWeight:
    name: str
    """Name in a checkpoint of the base model."""
    read: Callable[[], torch.Tensor]
    """Function that returns the current weight: the training weight, or a merged copy."""
    trained: bool
    adapted: Callable[[], Projection] | None
    """Function that returns the base weight and the adapter; None if the weight has no adapter."""
    group: str
    """Name of the parent of the weight's module. vLLM joins weights with the same parent, for
    example q, k and v, so these weights are loaded together."""


class PolicyWeights:
    """Weights of a model in training, read again at each rollout."""

    def __init__(self, model: Untyped) -> None:
        """Raises UnsupportedModel if a module cannot be merged."""
        self._model = model
        self.read_names()

    def read_names(self) -> list[NamedWeight]:
        """List all weights. Raises UnsupportedModel."""
        causal = self._model.get_base_model() if _is_peft(self._model) else self._model
        tied = _tied_head(causal)
        weights = []
        for name, module in _leaves(causal):
            if name != tied:
                weights += _weights_of(name, module, causal.dtype)
            elif isinstance(module, peft.tuners.lora.LoraLayer):
                raise UnsupportedModel(
                    f"{name}: the head has an adapter, but shares its weights with the embedding"
                )
        return weights

    def everything(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all weights by name."""
        for weight in self.read_names():
            yield weight.name, weight.read()

    def trained(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights of all groups in which training changes a weight."""
        for weight in self._in_trained_groups():
            yield weight.name, weight.read()

    def items(self, *, everything: bool) -> Iterator[Item]:
        """Yield the weights to send to a server that has the base model's weights.

        `everything`: False to skip groups of weights that training does not change.
        """
        for weight in self.read_names() if everything else self._in_trained_groups():
            if weight.adapted is not None:
                adapter = weight.adapted().adapter
                assert adapter is not None
                yield Item(weight.name, a=adapter.a, b=adapter.b, scale=adapter.scale)
            else:
                yield Item(weight.name, full=weight.read() if weight.trained else None)

    def untrained(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the base weight of each weight with an adapter, from the model's end to its
        start."""
        for weight in reversed(self.read_names()):
            if weight.adapted is not None:
                base = weight.adapted().weight
                if isinstance(base, torch.Tensor):
                    yield weight.name, base.detach()

    def _in_trained_groups(self) -> list[NamedWeight]:
        weights = self.read_names()
        groups = {weight.group for weight in weights if weight.trained}
        return [weight for weight in weights if weight.group in groups]


def _leaves(causal: Untyped) -> Iterator[tuple[str, Untyped]]:
    def visit(name: str, module: Untyped) -> Iterator[tuple[str, Untyped]]:
        if _is_wrapper(module):
            yield name, module
            return
        if module._parameters:
            yield name, module
        for child_name, child in module.named_children():
            yield from visit(f"{name}.{child_name}" if name else child_name, child)

    yield from visit("", causal)


def _weights_of(name: str, module: Untyped, dtype: torch.dtype) -> list[NamedWeight]:
    group = name.rpartition(".")[0]
    if isinstance(module, ModulesToSaveWrapper):
        active = module.modules_to_save[module.active_adapters[0]]
        return [
            NamedWeight(f"{name}.{key}", parameter.detach, True, None, group)
            for key, parameter in active.named_parameters()
        ]
    if has_token_rows(module):
        return [NamedWeight(f"{name}.weight", lambda: _with_rows(module), True, None, group)]
    if _is_wrapper(module) or isinstance(module, torch.nn.Linear):
        try:
            check_linear(module)
        except Unsupported as reason:
            raise UnsupportedModel(f"{name}: {reason}") from None
        part = read_projection(module)
        trained = part.adapter is not None or _base(module).weight.requires_grad
        found = [
            NamedWeight(
                f"{name}.weight",
                lambda: merged_weight(read_projection(module), dtype),
                trained,
                None if part.adapter is None else lambda: read_projection(module),
                group,
            )
        ]
        if part.bias is not None:
            found.append(NamedWeight(f"{name}.bias", part.bias.detach, trained, None, group))
        return found
    return [
        NamedWeight(f"{name}.{key}", parameter.detach, parameter.requires_grad, None, group)
        for key, parameter in module._parameters.items()
        if parameter is not None
    ]


def _with_rows(wrapper: Untyped) -> torch.Tensor:
    layer = wrapper.token_adapter
    weight: torch.Tensor = layer.get_base_layer().weight.detach()
    rows = trained_rows(layer)
    if rows is None:
        return weight
    return weight.index_copy(0, rows.ids, rows.values.detach().to(weight.dtype))


def _tied_head(causal: Untyped) -> str | None:
    """Return the name of the head if it shares the embedding's weight, else None. vLLM shares this
    weight too."""
    if not causal.config.get_text_config().tie_word_embeddings:
        return None
    head = causal.get_output_embeddings()
    return next((name for name, module in _leaves(causal) if module is head), None)


def _is_wrapper(module: Untyped) -> bool:
    return isinstance(module, peft.tuners.tuners_utils.BaseTunerLayer | ModulesToSaveWrapper) or (
        has_token_rows(module)
    )


def _base(module: Untyped) -> Untyped:
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module


def _is_peft(model: Untyped) -> bool:
    return hasattr(model, "peft_config")
