"""Groups of completions with the same prompt: their order in training, and their micro-batches.

With a prompt of P tokens and G completions of R tokens each, a forward pass has P + G R tokens if
the completions share the prompt, and G (P + R) tokens otherwise. Micro-batches are built on the
host. The last token of each completion is left out, because it predicts no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Literal

import torch

from tunesmith_kernels.segments import NO_PREFIX, Prefixes

from .batches import fill_bins

ROWS = "rows"
"""Key under which a batch stores its rows."""
GroupLayout = Literal["shared", "plain"]
"""`shared`: each prompt occurs once, before all its completions. `plain`: a copy of the prompt
precedes each completion."""

SHARING_PAYS = 1.05
"""Minimum `token_ratio` at which shared prompts are faster (docs/contributing/log)."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    skip: bool = False
    """True for a row without a gradient: the forward pass leaves out the row, and its scores are
    zero."""

    @property
    def scored(self) -> bool:
        return bool(self.completion_ids) and not self.skip


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with the same prompt."""

    prompt_ids: tuple[int, ...]
    members: tuple[int, ...]
    """Indices of the group's rows; at least one index."""


@dataclass(frozen=True, slots=True)
class GroupSizes:
    prompt: int
    """Number of tokens in the prompt."""
    completions: tuple[int, ...]
    """Number of tokens in each completion, at least 1."""

    def tokens(self, layout: GroupLayout) -> int:
        """Return the number of tokens in the forward pass, without each completion's last token."""
        own = sum(self.completions) - len(self.completions)
        return own + self.prompt * (1 if layout == "shared" else len(self.completions))


def groups_of(rows: Sequence[GroupRow]) -> list[Group]:
    """Group the scored rows by prompt, in the order of each prompt's first row.

    Raises ValueError for a prompt without tokens."""
    members: dict[tuple[int, ...], list[int]] = {}
    for number, row in enumerate(rows):
        if not row.prompt_ids:
            raise ValueError(
                f"row {number} has an empty prompt: no token predicts the first completion token"
            )
        if row.scored:
            members.setdefault(row.prompt_ids, []).append(number)
    return [Group(prompt, tuple(numbers)) for prompt, numbers in members.items()]


def sizes_of(rows: Sequence[GroupRow]) -> list[GroupSizes]:
    return [
        GroupSizes(len(group.prompt_ids), tuple(len(rows[i].completion_ids) for i in group.members))
        for group in groups_of(rows)
    ]


def token_ratio(groups: Sequence[GroupSizes]) -> float:
    """Return the token count of the plain layout divided by the token count of the shared layout.

    The ratio is 1 if `groups` is empty."""
    plain, shared = (sum(group.tokens(kind) for group in groups) for kind in ("plain", "shared"))
    return plain / shared if shared else 1.0


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    layout: GroupLayout
    reason: str


def choose_layout(groups: Sequence[GroupSizes]) -> LayoutChoice:
    """Choose the layout by the token ratio."""
    ratio = token_ratio(groups)
    layout: GroupLayout = "shared" if ratio >= SHARING_PAYS else "plain"
    return LayoutChoice(
        layout,
        f"without shared prompts, the rows have {ratio:.2f} times the tokens; sharing is faster "
        f"if this factor is at least {SHARING_PAYS:g}",
    )


class GroupOrder(torch.utils.data.Sampler[int]):
    """Sampler that yields prompt indices group by group, in the same order in every attempt of a
    job.

    Each index is repeated `num_generations` times. The `prompts_per_step` indices of a step are
    repeated for `num_iterations` optimiser steps. An incomplete last step is dropped."""

    def __init__(
        self,
        prompts: int,
        *,
        prompts_per_step: int,
        num_generations: int,
        num_iterations: int,
        seed: int,
    ) -> None:
        super().__init__()
        self._prompts, self._seed, self._epoch = prompts, seed, 0
        self._per_step, self._generations = prompts_per_step, num_generations
        self._iterations = num_iterations

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch number, which determines the order of the prompts."""
        self._epoch = epoch

    def __len__(self) -> int:
        steps = self._prompts // self._per_step
        return steps * self._per_step * self._generations * self._iterations

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self._seed << 16) + self._epoch)
        order = torch.randperm(self._prompts, generator=generator).tolist()
        for start in range(0, self._prompts - self._per_step + 1, self._per_step):
            for _ in range(self._iterations):
                for prompt in order[start : start + self._per_step]:
                    yield from [prompt] * self._generations


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Inputs of a forward pass that scores N completion tokens."""

    input_ids: torch.Tensor
    """int64 [1, T] with concatenated rows, or [B, T] padded on the right."""
    sources: torch.Tensor
    """int64 [N]: flat index in `input_ids` of the token before each scored token."""
    targets: torch.Tensor
    """int64 [N]: the scored tokens."""
    places: torch.Tensor
    """int64 [N]: flat index of each scored token in the result, which has the shape [rows, C]."""
    bounds: tuple[int, ...] | None = None
    """Start index of each concatenated row, then T; None if padded."""
    position_ids: torch.Tensor | None = None
    """Positions, int64 [1, T]; None if padded, because every padded row starts at position 0."""
    attention_mask: torch.Tensor | None = None
    """Attention mask, int64 [B, T]; None if not padded."""
    prefixes: Prefixes | None = None
    """Prompts that rows share; None if there are none."""


def end_to_end(
    rows: Sequence[GroupRow], layout: GroupLayout, max_tokens: int | None
) -> list[GroupBatch]:
    """Build micro-batches of concatenated rows. All micro-batches have about the same size, at most
    `max_tokens` tokens.

    A single completion with its prompt may exceed `max_tokens`. A group above `max_tokens` is
    split, and each part gets the prompt.
    """
    groups = groups_of(rows)
    if layout == "plain":
        groups = [Group(group.prompt_ids, (i,)) for group in groups for i in group.members]
    if max_tokens is not None:
        groups = list(chain.from_iterable(_split(group, rows, max_tokens) for group in groups))
    sizes = [_tokens(group, rows) for group in groups]
    if not groups:
        return []
    bins = fill_bins(sizes, sum(sizes) if max_tokens is None else max_tokens)
    return [_concatenate([groups[i] for i in indices], rows) for indices in bins]


def side_by_side(rows: Sequence[GroupRow], max_tokens: int | None) -> list[GroupBatch]:
    """Build padded micro-batches from rows of similar length, up to `max_tokens` token positions
    each.

    Padding counts toward `max_tokens`. A single row may exceed `max_tokens`."""
    width = _width(rows)
    numbers = sorted(
        chain.from_iterable(group.members for group in groups_of(rows)),
        key=lambda i: -_length(rows[i]),
    )
    batches = []
    while numbers:
        slots = _length(rows[numbers[0]])
        count = len(numbers) if max_tokens is None else max(1, max_tokens // slots)
        batches.append(_padded(numbers[:count], rows, width))
        numbers = numbers[count:]
    return batches


def _split(group: Group, rows: Sequence[GroupRow], max_tokens: int) -> list[Group]:
    if _tokens(group, rows) <= max_tokens:
        return [group]
    own = [len(rows[i].completion_ids) - 1 for i in group.members]
    parts = fill_bins(own, max(1, max_tokens - len(group.prompt_ids)))
    return [Group(group.prompt_ids, tuple(group.members[i] for i in part)) for part in parts]


def _tokens(group: Group, rows: Sequence[GroupRow]) -> int:
    return len(group.prompt_ids) + sum(len(rows[i].completion_ids) - 1 for i in group.members)


def _length(row: GroupRow) -> int:
    return len(row.prompt_ids) + len(row.completion_ids) - 1


def _width(rows: Sequence[GroupRow]) -> int:
    return max((len(row.completion_ids) for row in rows), default=0)


@dataclass(slots=True)
class _Scores:
    """Collects the indices of scored tokens, row by row."""

    width: int
    sources: list[range | tuple[int, ...]] = field(default_factory=list)
    targets: list[tuple[int, ...]] = field(default_factory=list)
    places: list[range] = field(default_factory=list)

    def add(self, number: int, completion: tuple[int, ...], before: int, own: int) -> None:
        self.sources.append((before, *range(own, own + len(completion) - 1)))
        self.targets.append(completion)
        start = number * self.width
        self.places.append(range(start, start + len(completion)))


def _flat(parts: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.tensor([*chain.from_iterable(parts)], dtype=torch.int64)


def _concatenate(groups: Sequence[Group], rows: Sequence[GroupRow]) -> GroupBatch:
    """Concatenate groups. A prompt with several completions is a separate row, and the completions
    attend to this row as their prefix.

    A prompt with a single completion is in the same row as the completion."""
    scores = _Scores(_width(rows))
    ids: list[tuple[int, ...]] = []
    positions: list[range] = []
    prefixes: list[tuple[int, int]] = []
    end = 0

    def append(tokens: tuple[int, ...], position: int, prefix: tuple[int, int]) -> int:
        nonlocal end
        start, end = end, end + len(tokens)
        ids.append(tokens)
        positions.append(range(position, position + len(tokens)))
        prefixes.append(prefix)
        return start

    for group in groups:
        prompt, size = group.prompt_ids, len(group.prompt_ids)
        if len(group.members) == 1:
            (number,) = group.members
            completion = rows[number].completion_ids
            own = append(prompt + completion[:-1], 0, NO_PREFIX) + size
            scores.add(number, completion, own - 1, own)
            continue
        first = append(prompt, 0, NO_PREFIX)
        for number in group.members:
            completion = rows[number].completion_ids
            own = append(completion[:-1], size, (first, first + size))
            scores.add(number, completion, first + size - 1, own)
    bounds = (0, *accumulate(map(len, ids)))
    shared = any(prefix != NO_PREFIX for prefix in prefixes)
    return GroupBatch(
        input_ids=_flat(ids)[None],
        position_ids=_flat(positions)[None],
        bounds=bounds,
        prefixes=Prefixes.of(bounds, prefixes) if shared else None,
        sources=_flat(scores.sources),
        targets=_flat(scores.targets),
        places=_flat(scores.places),
    )


def _padded(numbers: Sequence[int], rows: Sequence[GroupRow], width: int) -> GroupBatch:
    scores, length = _Scores(width), max(_length(rows[i]) for i in numbers)
    input_ids = torch.zeros(len(numbers), length, dtype=torch.int64)
    mask = torch.zeros_like(input_ids)
    for place, number in enumerate(numbers):
        row = rows[number]
        tokens = row.prompt_ids + row.completion_ids[:-1]
        input_ids[place, : len(tokens)] = torch.tensor(tokens)
        mask[place, : len(tokens)] = 1
        own = place * length + len(row.prompt_ids)
        scores.add(number, row.completion_ids, own - 1, own)
    return GroupBatch(
        input_ids=input_ids,
        attention_mask=mask,
        sources=_flat(scores.sources),
        targets=_flat(scores.targets),
        places=_flat(scores.places),
    )
