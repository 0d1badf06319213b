"""Tripwires on gradients: each group of trained parameters and each used embedding row must get a
gradient.

Each check copies the largest elements of all gradients to the host as one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_schema import ErrorCategory

from .findings import REPORT_HINT, Finding

Untyped = Any  # Any: transformers and peft are not typed

CHECK = "gradient"
TOKEN_ROWS = "trainable_tokens_delta"
"""Substring in the names of PEFT's parameters that train single rows of an embedding."""
_EXPERT = re.compile(r"\.experts\.\d+\.")
_NUMBER = re.compile(r"\.\d+\.")
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Parameters that are checked together: an adapter's A and B, or all experts of a layer.

    In full tuning, each tensor outside experts is a unit.
    """

    name: str
    """Module name without PEFT's prefixes, for example `model.layers.0.self_attn.q_proj`."""
    parameters: dict[str, torch.nn.Parameter]

    @property
    def kind(self) -> str:
        """The module name without layer numbers, equal for the same module in every layer."""
        return _NUMBER.sub(".*.", self.name)

    @property
    def is_layered(self) -> bool:
        return self.kind != self.name

    @property
    def is_adapter(self) -> bool:
        return any(".lora_" in name for name in self.parameters)

    @property
    def may_have_no_gradient(self) -> bool:
        """True for biases and for trained rows of an embedding.

        The bias of a key projection adds a constant to all scores of a query, and softmax ignores
        constants. `check_rows` checks the gradients of embedding rows.
        """
        return self.name.endswith(".bias") or any(TOKEN_ROWS in name for name in self.parameters)


def trained_units(model: Untyped) -> list[Unit]:
    """Group all trained parameters, and the parameters of frozen adapters, into units."""
    units: dict[str, dict[str, torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or ".lora_" in name:
            units.setdefault(_unit_name(name), {})[name] = parameter
    return [Unit(name=name, parameters=parameters) for name, parameters in units.items()]


def changing_parameters(units: list[Unit]) -> Iterator[tuple[Unit, torch.nn.Parameter]]:
    """List the parameters that every update changes.

    In an adapter, only the matrix B counts, because B stays zero if the adapter does not learn.
    """
    for unit in units:
        for name, parameter in unit.parameters.items():
            if not unit.is_adapter or ".lora_B." in name or ".lora_embedding_B." in name:
                yield unit, parameter


def first_factors(units: Sequence[Unit]) -> Iterator[tuple[Unit, torch.nn.Parameter]]:
    """List LoRA's A matrices. LoRA's A gets no gradient while LoRA's B is 0."""
    for unit in units:
        for name, parameter in unit.parameters.items():
            if ".lora_A." in name or ".lora_embedding_A." in name:
                yield unit, parameter


def largest_elements(units: Sequence[Unit]) -> dict[str, torch.Tensor | None]:
    """Return each parameter's largest gradient element, as a scalar on the device; None without a
    gradient.
    """
    largest: dict[str, torch.Tensor | None] = {}
    for unit in units:
        for name, parameter in unit.parameters.items():
            grad = parameter.grad
            largest[name] = None if grad is None else torch.linalg.vector_norm(grad, torch.inf)
    return largest


def copy_to_host(tensors: dict[str, torch.Tensor | None]) -> dict[str, float | None]:
    """Copy scalar tensors to the host and return their values.

    The function waits for the device only once.
    """
    present = [tensor.float() for tensor in tensors.values() if tensor is not None]
    numbers = iter(torch.stack(present).tolist() if present else [])
    return {name: None if tensor is None else next(numbers) for name, tensor in tensors.items()}


def check_frozen(units: Sequence[Unit]) -> Iterator[Finding]:
    names = [u.name for u in units if not all(p.requires_grad for p in u.parameters.values())]
    if names:
        yield _finding(f"{list_names(names)} is frozen: requires_grad is off, so it cannot learn.")


def check_units(
    units: Sequence[Unit], largest: dict[str, float | None], seen: set[str], *, first: bool
) -> Iterator[Finding]:
    """Yield a finding for each unit of parameters that has had no gradient at any check so far.

    `largest`: result of `copy_to_host`. `seen`: names of units that had a gradient at an earlier
    check. The function adds to `seen` the names of the units that have a gradient now. `first`:
    True at the first check.

    A unit without a gradient is an error if the same module has a gradient in another layer. If a
    module has no gradient in any layer, the finding is only a warning, and the first check does not
    report it. The reason may be short rows: queries and keys get no gradient from rows of two
    tokens.
    """
    seen |= {u.name for u in units if any(largest[name] for name in u.parameters)}
    without = [u for u in units if u.name not in seen and not u.may_have_no_gradient]
    detached = [u for u in without if all(largest[name] is None for name in u.parameters)]
    zero = [u for u in without if u not in detached]
    if detached:
        names = list_names([u.name for u in detached])
        yield _finding(f"no gradient reaches {names}: it is detached from the loss.")
    if zero and not seen:
        yield _finding("the gradients of all trained parameters are exactly zero.")
        return
    seen_kinds = {u.kind for u in units if u.name in seen}
    alone = [u.name for u in zero if u.kind in seen_kinds or not u.is_layered]
    if alone:
        yield _finding(
            f"the gradient of {list_names(alone)} is exactly zero, but the gradients of other "
            "modules are not."
        )
    everywhere = sorted({u.kind for u in zero if u.name not in alone})
    if everywhere and not first:
        yield Finding(
            CHECK,
            f"the gradient of {list_names(everywhere)} is exactly zero in every layer.",
            "Rows of one or two tokens are too short to train attention. Use longer rows.",
            level="warn",
        )


def used_row_gradients(
    model: Untyped, predicting: torch.Tensor
) -> dict[str, tuple[list[int], torch.Tensor]]:
    """Return which rows of each embedding matrix this step trains, and each row's largest gradient
    element.

    Rows are given as token ids; the gradient elements are a tensor with one element per row.
    `predicting`: ids of tokens that predict a labelled token. The result has only the rows of
    tokens in `predicting`, because each of these rows must have a gradient.
    """
    used = set(predicting.tolist())
    gradients = {}
    for name, ids, grad, padding in _row_gradients(model):
        places = [place for place, id_ in enumerate(ids) if id_ in used and id_ != padding]
        if places and grad is not None:
            index = torch.tensor(places, device=grad.device)
            sizes = torch.linalg.vector_norm(grad.index_select(0, index), torch.inf, dim=1)
            gradients[name] = [ids[place] for place in places], sizes
    return gradients


def check_rows(name: str, ids: list[int], sizes: Iterable[float]) -> Iterator[Finding]:
    without = [id_ for id_, size in zip(ids, sizes, strict=True) if size == 0.0]
    if without:
        yield _finding(
            f"some rows of {name} get no gradient, although the step trains on their "
            f"tokens: token ids {list_names([str(id_) for id_ in without])}."
        )


def list_names(names: Sequence[str]) -> str:
    """Join the first `_SHOWN` names, and append the number of the names that are left out."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _row_gradients(
    model: Untyped,
) -> Iterator[tuple[str, Sequence[int], torch.Tensor | None, int | None]]:
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
    return Finding(CHECK, message, REPORT_HINT, category=ErrorCategory.INFRASTRUCTURE)


def _unit_name(parameter: str) -> str:
    name = parameter.removeprefix("base_model.model.").partition(".lora_")[0]
    return _EXPERT.sub(".experts.*.", name)
