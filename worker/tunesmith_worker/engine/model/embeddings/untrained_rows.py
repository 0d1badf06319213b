"""Find the rows of an embedding or a head that were never trained.

If a token never occurred in training, the token's row keeps its initial value or changes in the
same way as all other unused rows. In a head, the rows of all tokens that never occur have the same
gradient. In an embedding, weight decay shrinks unused rows towards 0.

A row counts as never trained if it is not finite, is constant, or is very near to 0, to the mean
row or to another row. "Very near" means a distance of at most `NEAR` times the median distance
between a row and the mean row. Untrained rows with independent random values look like trained
rows, so this method does not find them.

In stories260K, a model trained on children's stories, 169 byte tokens never occur. The rows of
these byte tokens differ from each other by at most 4e-4 times the median distance. Every other row
differs from the rows of these byte tokens by at least 1.3e-2 times the median distance
(docs/contributing/log).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .matrices import mean_row

NEAR = 3e-3
_BLOCK = 8192  # rows processed at a time
_DIRECTIONS = 16


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """Masks over the rows of a [V, H] weight: bool tensors [V] on the CPU."""

    rows: torch.Tensor
    """True for rows that were never trained."""
    empty: torch.Tensor
    """True for untrained rows that need a new initial value: 0, constant or not finite."""


def find_untrained(weight: torch.Tensor) -> Untrained:
    """Find the untrained rows of a weight [V, H]. If fewer than two rows are finite and not
    constant, no row counts as untrained."""
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
    """Return [n] bool: True for rows that are finite and not constant."""
    low, high = rows.amin(1), rows.amax(1)
    return low.isfinite() & high.isfinite() & (low != high)


def _directions(weight: torch.Tensor) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(weight.shape[1], _DIRECTIONS, generator=draw).to(weight.device)


def _near_another(
    weight: torch.Tensor, places: torch.Tensor, at: torch.Tensor, limit: float
) -> torch.Tensor:
    """Find the rows that have another row within the distance `limit`. `places`: numbers of
    the rows of `weight` that are compared. Returns indices into `places`.

    `at` [n, directions]: random projections of the rows. Rows with similar projections are in the
    same cell of a grid (locality-sensitive hashing, Datar et al. 2004,
    https://doi.org/10.1145/997817.997857). Distances are computed only between rows in the same
    cell. Two near rows can be on different sides of a cell's border, so a second, shifted grid is
    used too.
    """
    at = at / at.std(0) * 2  # a cell is half a standard deviation wide
    positions = [
        _near_first_of_cell(weight, places, (at + shift).floor().long(), limit)
        for shift in (0.0, 0.5)
    ]
    near: torch.Tensor = torch.cat(positions).unique()
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
