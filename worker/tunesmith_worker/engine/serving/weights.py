"""Weights of a base model for serving with several adapters.

The decoder packs the weights: it joins weights with the same input, such as q, k and v, and on a
CPU converts them to the layout of its kernels. The packed weights replace the model's own weights,
so that the process holds only one copy.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from tunesmith_worker.engine.rollout.architecture import Architecture, LayerSpec
from tunesmith_worker.engine.rollout.linear import can_pack
from tunesmith_worker.engine.rollout.weights import DecoderWeights, LayerWeights, decoder_weights

from .lora import AdapterBank

Untyped = Any  # Any: transformers is not typed

ROWS = 32
"""Number of tokens per step for which the packed weights are optimized."""


class ServingWeights:
    """Weights and adapters of one base model. `close` frees both."""

    def __init__(self, model: Untyped, architecture: Architecture) -> None:
        self._stack = ExitStack()
        self.bank = AdapterBank(architecture.device)
        weights = self._stack.enter_context(decoder_weights(architecture, "merged", ROWS))
        paths = {id(module): path for path, module in model.named_modules()}
        weights.layers = [self._adapted(layer, paths) for layer in weights.layers]
        self.decoder: DecoderWeights = weights
        _drop_copied(architecture)

    def close(self) -> None:
        self._stack.close()

    def _adapted(self, layer: LayerWeights, paths: dict[int, str]) -> LayerWeights:
        spec: LayerSpec = layer.spec

        def wrap(linear: Any, modules: tuple[Untyped, ...]) -> Any:
            outs = [module.weight.shape[0] for module in modules]
            return self.bank.wrap(linear, [paths[id(module)] for module in modules], outs)

        return replace(
            layer,
            qkv=wrap(layer.qkv, spec.qkv),
            out=wrap(layer.out, (spec.out,)),
            gate_up=wrap(layer.gate_up, spec.gate_up),
            down=wrap(layer.down, (spec.down,)),
        )


def _drop_copied(architecture: Architecture) -> None:
    packs = can_pack(architecture.dtype, architecture.device)
    for spec in architecture.layers:
        for modules in (spec.qkv, (spec.out,), spec.gate_up, (spec.down,)):
            if packs or len(modules) > 1:
                for module in modules:
                    module.weight = torch.nn.Parameter(
                        module.weight.new_empty(0), requires_grad=False
                    )
