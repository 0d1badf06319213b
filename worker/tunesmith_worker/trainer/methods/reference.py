"""Reference model of a LoRA run: the trained model without its adapter, and with its initial
biases.

PEFT's `disable_adapter` keeps the trained values of biases (`recipe.lora.bias`). While the
reference model runs, biases have their initial values, and dropout is off.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper

Untyped = Any  # Any: transformers and PEFT are not typed


class AdapterReference:
    """Reference model that shares its weights with the trained PEFT model."""

    def __init__(self, model: Untyped) -> None:
        """Copy the trained parameters that stay active while the adapter is disabled.

        `model`: a PEFT model before its first step."""
        self._model = model
        self._initial = [(p, p.detach().clone()) for p in parameters_beside_adapter(model)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this block, biases have their initial values, and dropout is off. The caller must
        disable the adapter. At the end of the block, the model gets its trained values back, bit
        for bit."""
        trained = [(p, p.detach().clone()) for p, _ in self._initial]
        was_training = self._model.training
        try:
            _copy(self._initial)
            self._model.eval()
            yield
        finally:
            self._model.train(was_training)
            _copy(trained)


@contextmanager
def no_bias_warning() -> Iterator[None]:
    """Ignore PEFT's warning about trained biases, because AdapterReference restores the biases."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Careful, disabling adapter layers", UserWarning)
        yield


def parameters_beside_adapter(model: Untyped) -> list[torch.nn.Parameter]:
    """Return the trained parameters that PEFT's `disable_adapter` does not disable."""
    disabled = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)
        for name in module.adapter_layer_names
        if isinstance(container := getattr(module, name, None), torch.nn.Module)
        for parameter in container.parameters()
    }
    return [p for p in model.parameters() if p.requires_grad and id(p) not in disabled]


@torch.no_grad()
def _copy(values: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
    for parameter, value in values:
        parameter.copy_(value)
