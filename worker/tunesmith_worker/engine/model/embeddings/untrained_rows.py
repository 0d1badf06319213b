"""Which rows of an embedding or a head were never trained, by their values alone.

A row that no text ever touched keeps the value it was given, or moves with all other such rows: in
a head each unseen token is pushed along the same gradient, and weight decay shrinks an untouched
embedding towards 0. So a row counts as never trained when it is not finite, constant, or nearer
than `NEAR` times the usual spread of rows to 0, to the mean of all rows or to another row. The
spread is the median distance from the mean. Rows that were drawn at random one by one and never
trained look like any other and are not found.

Measured (docs/contributing/log): in stories260K, trained on children's stories, the 169 rows of
byte tokens that those never hold lie within 4e-4 spreads of one another, the next at 1.3e-2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .matrices import mean_row

NEAR = 3e-3
_BLOCK = 8192  # rows read at a time
_DIRECTIONS = 16


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """Of each row of a [V, H] weight: [V] bool on the CPU."""

    rows: torch.Tensor
    """Never trained."""
    empty: torch.Tensor
    """Of those, the ones whose value is no place to start from: 0, constant, not finite."""


def find_untrained(weight: torch.Tensor) -> Untrained:
    """weight: [V, H] of any dtype. A matrix without two usable rows is left alone."""
    weight = weight.detach()
    usable = torch.cat([_usable(part) for part in weight.split(_BLOCK)])
    places = usable.nonzero()[:, 0]
    rows, empty = ~usable, ~usable
    if len(places) < 2:
        nothing = torch.zeros_like(rows).cpu()
        return Untrained(rows=nothing, empty=nothing)
    mean = mean_row(weight, places).float()
    directions = _directions(weight)
    from_mean, from_zero, at = (
        torch.cat(parts)
        for parts in zip(
            *(
                ((part - mean).norm(dim=1), part.norm(dim=1), part @ directions)
                for part in (weight[index].float() for index in places.split(_BLOCK))
            ),
            strict=True,
        )
    )
    limit = NEAR * float(from_mean.median())
    near_zero, near_mean = places[from_zero <= limit], places[from_mean <= limit]
    for near in (near_zero, near_mean, places[_near_another(weight, places, at, limit)]):
        rows[near] = True
    empty[near_zero] = True
    return Untrained(rows=rows.cpu(), empty=empty.cpu())


def _usable(rows: torch.Tensor) -> torch.Tensor:
    """[n] bool: finite and not all one number."""
    low, high = rows.amin(1), rows.amax(1)
    return low.isfinite() & high.isfinite() & (low != high)


def _directions(weight: torch.Tensor) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(weight.shape[1], _DIRECTIONS, generator=draw).to(weight.device)


def _near_another(
    weight: torch.Tensor, places: torch.Tensor, at: torch.Tensor, limit: float
) -> torch.Tensor:
    """Positions in `places` of rows that have another within `limit`; `at` [n, directions]: their
    projections.

    Rows are put into cells by their projections (locality-sensitive hashing, Datar et al. 2004,
    https://doi.org/10.1145/997817.997857): near rows share a cell, and only rows that do are
    measured. A second grid, shifted, finds those that a cell's border parted.
    """
    at = at / at.std(0) * 2  # a cell is half a standard deviation wide
    found = [
        _near_first_of_cell(weight, places, (at + shift).floor().long(), limit)
        for shift in (0.0, 0.5)
    ]
    near: torch.Tensor = torch.cat(found).unique()
    return near


def _near_first_of_cell(
    weight: torch.Tensor, places: torch.Tensor, cells: torch.Tensor, limit: float
) -> torch.Tensor:
    _, cell, count = cells.unique(dim=0, return_inverse=True, return_counts=True)
    shared = (count[cell] > 1).nonzero()[:, 0]
    first = torch.full_like(count, len(cell))
    first.scatter_reduce_(0, cell[shared], shared, "amin")
    others = shared[first[cell[shared]] != shared]
    near = []
    for part in others.split(_BLOCK):
        leaders = first[cell[part]]
        apart = weight[places[part]].float() - weight[places[leaders]].float()
        close = apart.norm(dim=1) <= limit
        near += [part[close], leaders[close]]
    return torch.cat(near) if near else others
