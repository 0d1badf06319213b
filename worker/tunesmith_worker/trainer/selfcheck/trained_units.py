"""What must learn, in units that are judged as one: an adapter (its A and B), all experts of a
layer together, and with full tuning each tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

Untyped = Any  # Any: transformers and peft are not typed

ROWS = "trainable_tokens_delta"
"""In the name of PEFT's token rows."""
_EXPERT = re.compile(r"\.experts\.\d+\.")
_NUMBER = re.compile(r"\.\d+\.")


@dataclass(frozen=True, kw_only=True)
class Unit:
    name: str
    """As the user knows the module, e.g. `model.layers.0.self_attn.q_proj`."""
    parameters: dict[str, torch.nn.Parameter]

    @property
    def kind(self) -> str:
        """The same for its like in every layer: layers have it without their number."""
        return _NUMBER.sub(".*.", self.name)

    @property
    def is_layered(self) -> bool:
        return self.kind != self.name

    @property
    def is_adapter(self) -> bool:
        return any(".lora_" in name for name in self.parameters)

    @property
    def may_stand_still(self) -> bool:
        """A key's bias shifts all scores of a query alike, and softmax takes no notice; token rows
        are judged by the tokens that occur."""
        return self.name.endswith(".bias") or any(ROWS in name for name in self.parameters)


def trained_units(model: Untyped) -> list[Unit]:
    """Of a model with an adapter or to be tuned in full; adapters also where they are frozen."""
    units: dict[str, dict[str, torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or ".lora_" in name:
            units.setdefault(_unit_name(name), {})[name] = parameter
    return [Unit(name=name, parameters=parameters) for name, parameters in units.items()]


def moving(units: list[Unit]) -> Iterator[tuple[Unit, torch.nn.Parameter]]:
    """What an update must change: of an adapter B, which starts at zero and stays there unless
    something learns; else every tensor."""
    for unit in units:
        for name, parameter in unit.parameters.items():
            if not unit.is_adapter or ".lora_B." in name or ".lora_embedding_B." in name:
                yield unit, parameter


def _unit_name(parameter: str) -> str:
    name = parameter.removeprefix("base_model.model.").partition(".lora_")[0]
    return _EXPERT.sub(".experts.*.", name)
