"""Several LoRA adapters on one base model, for batches whose tokens use different adapters.

Like PEFT, each linear layer computes `y = x W' + b + s (x A') B'`, with the A, B and s of the
token's adapter. No merged weights are built. Each layer has one tensor A and one tensor B with the
matrices of all adapters; R is the sum of the adapters' ranks. If the tokens of a batch use several
adapters, the layer adds `(m * (x A')) B'`. The mask m [T, R] is s in the columns of a token's own
adapter, and 0 in all other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from tunesmith_worker.engine.rollout.linear import Linear

from .adapter_files import AdapterFile, LoraPair
from .protocol import UnsupportedAdapter

_MOST_UNUSED = 4
"""Maximum ratio of the sum of all adapters' ranks to the sum of the ranks of the adapters that a
batch uses. Above this ratio, the layer multiplies by each used adapter separately, instead of once
by the matrices of all adapters."""


@dataclass(frozen=True)
class _Place:
    start: int
    stop: int
    scale: float


@dataclass(frozen=True)
class _Group:
    """Tokens of a step that use the same adapter."""

    place: _Place
    tokens: torch.Tensor | None


class AdaptedLinear(Linear):
    """Linear layer of the base model, with the LoRA matrices of all adapters in an
    `AdapterBank`."""

    def __init__(self, base: Linear, bank: AdapterBank, paths: Sequence[str], outs: Sequence[int]):
        """`paths`, `outs`: path and output size of each projection that `base` computes, such as q,
        k and v."""
        self._base, self._bank, self.paths, self.outs = base, bank, tuple(paths), tuple(outs)
        self.a: torch.Tensor | None = None
        """[R parts, in]: a matrix A for each adapter and each projection of the layer. R: sum of
        the adapters' ranks; parts: number of projections."""
        self.b: torch.Tensor | None = None
        """[R parts, out]: the transposed matrices B in the same order. The rows of a projection are
        0 in the columns of all other projections."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._add(x, self._base(x))

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self._add(x, self._base.add_to(residual, x))

    def _add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        step = self._bank.step
        if step is None or self.a is None or self.b is None:
            return y
        parts, wide = len(self.paths), x.to(self.a.dtype)
        if isinstance(step, torch.Tensor):
            mask = step if parts == 1 else self._bank.widened(parts)
            return _add_product(y, linear(wide, self.a).mul_(mask), self.b)
        for group in step:
            columns = slice(group.place.start * parts, group.place.stop * parts)
            a, b = self.a[columns], self.b[columns]
            if group.tokens is None:
                y = _add_product(y, linear(wide, a).mul_(group.place.scale), b)
            else:
                low = linear(wide[group.tokens], a).mul_(group.place.scale)
                y.index_add_(0, group.tokens, (low @ b).to(y.dtype))
        return y

    def rows_of(self, adapter: AdapterFile) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of `self.a` [r parts, in] and `self.b` [r parts, out] for one adapter of
        rank r, in fp32."""
        rank, total = adapter.rank, sum(self.outs)
        pairs = [adapter.modules.get(path) for path in self.paths]
        size = next((pair.a.shape[1] for pair in pairs if pair is not None), 0)
        a = torch.zeros(rank * len(pairs), size)
        b = torch.zeros(rank * len(pairs), total)
        column = 0
        for part, (pair, out) in enumerate(zip(pairs, self.outs, strict=True)):
            if pair is not None:
                self._check(part, pair, size, out)
                rows = slice(part * rank, (part + 1) * rank)
                a[rows] = pair.a
                b[rows, column : column + out] = pair.b.t()
            column += out
        return a, b

    def _check(self, part: int, pair: LoraPair, size: int, out: int) -> None:
        if pair.a.shape[1] != size or pair.b.shape[0] != out:
            raise UnsupportedAdapter(
                f"the adapter's matrices for {self.paths[part]} do not match the model's sizes: "
                f"{list(pair.b.shape)} and {list(pair.a.shape)}"
            )


class AdapterBank:
    """The adapters of one base model, and the adapter of each token in the current step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._layers: list[AdaptedLinear] = []
        self._files: dict[str, AdapterFile] = {}
        self._places: dict[str, _Place] = {}
        self.step: torch.Tensor | list[_Group] | None = None
        """Mask [T, R] or groups of tokens in the current step; None if no token uses an adapter."""
        self._widened: dict[int, torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        tensors = [t for layer in self._layers for t in (layer.a, layer.b) if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)

    def wrap(self, base: Linear, paths: Sequence[str], outs: Sequence[int]) -> AdaptedLinear:
        layer = AdaptedLinear(base, self, paths, outs)
        self._layers.append(layer)
        return layer

    def get(self, name: str) -> AdapterFile:
        return self._files[name]

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def add(self, name: str, adapter: AdapterFile) -> None:
        """Raises UnsupportedAdapter if the adapter has a module that is not in the bank."""
        known = {path for layer in self._layers for path in layer.paths}
        if unknown := sorted(adapter.modules.keys() - known):
            raise UnsupportedAdapter(f"the adapter has matrices for {unknown[0]}")
        rows = [layer.rows_of(adapter) for layer in self._layers]
        start = max((place.stop for place in self._places.values()), default=0)
        pairs = zip(self._layers, rows, strict=True)
        # If memory runs out here, the bank is unchanged.
        grown = [self._appended(layer, a, b, start) for layer, (a, b) in pairs]
        self._files[name] = adapter
        self._places[name] = _Place(start, start + adapter.rank, adapter.scale)
        for layer, (a, b) in zip(self._layers, grown, strict=True):
            layer.a, layer.b = a, b

    def remove(self, name: str) -> None:
        """Remove an adapter and rebuild the tensors without it."""
        del self._files[name]
        files, self._files, self._places = self._files, {}, {}
        for layer in self._layers:
            layer.a = layer.b = None
        for other, adapter in files.items():
            self.add(other, adapter)

    def _appended(
        self, layer: AdaptedLinear, a: torch.Tensor, b: torch.Tensor, start: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        before_a, before_b = layer.a, layer.b
        if before_a is None or before_b is None:
            if not a.shape[1]:
                return None, None
            before = start * len(layer.paths)
            before_a = torch.zeros(before, a.shape[1], device=self._device)
            before_b = torch.zeros(before, b.shape[1], device=self._device)
        if not a.shape[1]:
            a = a.new_zeros(len(a), before_a.shape[1])
        return (
            torch.cat([before_a, a.to(self._device)]),
            torch.cat([before_b, b.to(self._device)]),
        )

    def start_step(self, adapters: Sequence[str | None]) -> None:
        """Set the adapter of each token in the next step."""
        self._widened.clear()
        used = {name for name in adapters if name is not None}
        if not used:
            self.step = None
            return
        if len(used) == 1 and None not in adapters:
            self.step = [_Group(self._places[next(iter(used))], None)]
            return
        places = {name: self._places[name] for name in sorted(used)}
        ranks = sum(place.stop - place.start for place in places.values())
        total = max(place.stop for place in self._places.values())
        if total > _MOST_UNUSED * ranks:
            self.step = [
                _Group(place, self._tokens_of(name, adapters)) for name, place in places.items()
            ]
            return
        rows = torch.zeros(len(places) + 1, total)
        for number, place in enumerate(places.values()):
            rows[number, place.start : place.stop] = place.scale
        number_of = {name: number for number, name in enumerate(places)}
        index = [number_of[name] if name is not None else len(places) for name in adapters]
        self.step = rows.to(self._device)[torch.tensor(index, device=self._device)]

    def _tokens_of(self, name: str, adapters: Sequence[str | None]) -> torch.Tensor:
        tokens = [i for i, one in enumerate(adapters) if one == name]
        return torch.tensor(tokens, device=self._device)

    def widened(self, parts: int) -> torch.Tensor:
        """Return the mask of the current step, [T, R parts], for layers that join several
        projections: each adapter's columns are repeated once per projection."""
        if parts not in self._widened:
            assert isinstance(self.step, torch.Tensor)
            pieces = []
            for place in self._places.values():
                pieces += [self.step[:, place.start : place.stop]] * parts
            self._widened[parts] = torch.cat(pieces, 1)
        return self._widened[parts]


def _add_product(y: torch.Tensor, low: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if y.dtype == low.dtype:
        return y.addmm_(low, b)
    return (y + low @ b).to(y.dtype)
