"""Whether gradient reaches what must learn: read on the host once for each look, as one tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_schema import ErrorCategory

from .findings import Finding

Untyped = Any  # Any: transformers and peft are not typed

CHECK = "gradient"
_SHOWN = 3
_BUG = "Nothing in a recipe does that: report it with the job's events."


def largest(units: Sequence[Unit]) -> dict[str, torch.Tensor | None]:
    """Of each parameter, by name: its gradient's largest element, [] on the device; None without a
    gradient."""
    found: dict[str, torch.Tensor | None] = {}
    for unit in units:
        for name, parameter in unit.parameters.items():
            grad = parameter.grad
            found[name] = None if grad is None else torch.linalg.vector_norm(grad, torch.inf)
    return found


def read(tensors: dict[str, torch.Tensor | None]) -> dict[str, float | None]:
    """On the host. Waits for the device, once."""
    there = [one.float() for one in tensors.values() if one is not None]
    numbers = iter(torch.stack(there).tolist() if there else [])
    return {name: None if one is None else next(numbers) for name, one in tensors.items()}


def frozen(units: Sequence[Unit]) -> Iterator[Finding]:
    names = [u.name for u in units if not all(p.requires_grad for p in u.parameters.values())]
    if names:
        yield _finding(f"{_listed(names)} is frozen: requires_grad is off, so it learns nothing.")


def judged(
    units: Sequence[Unit], now: dict[str, float | None], had: set[str], *, first: bool
) -> Iterator[Finding]:
    """`now`: as `read` gives it. `had`: names of units that had a gradient at an earlier look;
    those that have one now are added. `first`: this is the first look, others follow.

    A unit without any is an error where its like in other layers have one. Where none of them has,
    the rows may be the reason (queries and keys of rows of two tokens): that waits for more rows,
    and is only a warning.
    """
    had |= {u.name for u in units if any(now[name] for name in u.parameters)}
    without = [u for u in units if u.name not in had and not u.may_stand_still]
    detached = [u for u in without if all(now[name] is None for name in u.parameters)]
    zero = [u for u in without if u not in detached]
    if detached:
        names = _listed([u.name for u in detached])
        yield _finding(f"no gradient reaches {names}: it is detached from the loss.")
    if zero and not had:
        yield _finding("the gradient of everything that trains is exactly zero.")
        return
    alive = {u.kind for u in units if u.name in had}
    alone = [u.name for u in zero if u.kind in alive or not u.is_layered]
    if alone:
        yield _finding(f"the gradient of {_listed(alone)} is exactly zero, and others' is not.")
    everywhere = sorted({u.kind for u in zero if u.name not in alone})
    if everywhere and not first:
        yield Finding(
            CHECK,
            f"the gradient of {_listed(everywhere)} is exactly zero in every layer.",
            "Rows of one or two tokens are too short for attention to learn from.",
            level="warn",
        )


def silent_rows(
    model: Untyped, predicting: torch.Tensor
) -> dict[str, tuple[list[int], torch.Tensor]]:
    """Of each matrix whose rows train: ids of its rows that read a token of the step, and the
    largest element of each one's gradient, [k] on the device. `predicting`: ids of tokens that
    predict a labelled one, so that their row must have a gradient."""
    occurring = set(predicting.tolist())
    found = {}
    for name, ids, grad, padding in _row_gradients(model):
        where = [at for at, one in enumerate(ids) if one in occurring and one != padding]
        if where and grad is not None:
            index = torch.tensor(where, device=grad.device)
            sizes = torch.linalg.vector_norm(grad.index_select(0, index), torch.inf, dim=1)
            found[name] = [ids[at] for at in where], sizes
    return found


def judged_rows(name: str, ids: list[int], sizes: Iterable[float]) -> Iterator[Finding]:
    silent = [one for one, size in zip(ids, sizes, strict=True) if size == 0.0]
    if silent:
        yield _finding(
            f"rows of {name} have no gradient although their tokens occur in the step: token ids "
            f"{_listed([str(one) for one in silent])}."
        )


def _row_gradients(
    model: Untyped,
) -> Iterator[tuple[str, Sequence[int], torch.Tensor | None, int | None]]:
    """Of the input embedding: name, ids of the rows that train, their gradient [k, H], padding."""
    embedding = model.get_input_embeddings()
    (name, *_) = (name for name, module in model.named_modules() if module is embedding)
    name = name.removeprefix("base_model.model.")
    adapter = getattr(embedding, "token_adapter", None)  # PEFT's trainable_token_indices
    if adapter is not None:
        padding = adapter.get_base_layer().padding_idx
        for key, parameter in adapter.trainable_tokens_delta.items():
            yield name, adapter.token_indices[key], parameter.grad, padding
        return
    weight: Untyped = getattr(embedding, "weight", None)
    if weight is not None and weight.requires_grad:
        plain = getattr(embedding, "original_module", embedding)  # in PEFT's modules_to_save
        yield name, range(len(weight)), weight.grad, getattr(plain, "padding_idx", None)


def _finding(message: str) -> Finding:
    return Finding(CHECK, message, _BUG, category=ErrorCategory.INFRASTRUCTURE)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


TOKEN_ROWS = "trainable_tokens_delta"
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
        return self.name.endswith(".bias") or any(TOKEN_ROWS in name for name in self.parameters)


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
