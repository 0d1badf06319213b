"""Check that no example is trained more often than once in an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tunesmith_worker.trainer.selfcheck.findings import Finding

from .compare import fault

Untyped = Any  # Any: datasets are not typed

Key = tuple[int, ...]
"""Token ids of an example, or the number of a prompt's row."""


class DataOrder:
    """Counts the examples of the steps since the last check."""

    def __init__(self) -> None:
        self._seen: Counter[Key] = Counter()
        self._epochs: set[int] = set()
        self._steps = 0

    def add(self, examples: Sequence[Key], epoch: int) -> None:
        """Count the examples of a step. `epoch`: number of the epoch in which the step began."""
        self._seen.update(examples)
        self._epochs.add(epoch)
        self._steps += bool(examples)

    def check(self, dataset: Untyped) -> Iterator[Finding]:
        """Yield a finding if the run used an example more often than the example occurs in the
        data."""
        seen, epochs, steps = self._seen, len(self._epochs), self._steps
        self._seen, self._epochs, self._steps = Counter(), set(), 0
        for key, count in seen.most_common(1):
            if count > epochs and count > epochs * _copies(dataset, key):
                yield fault(
                    f"the same rows each step: in {steps} steps within {epochs} epoch"
                    f"{'s' * (epochs != 1)}, one example was trained {count} times (at most "
                    f"{epochs * _copies(dataset, key)} times is possible), and only {len(seen)} "
                    "different examples were trained.",
                    "data_order",
                )


def examples_of(step: dict[str, Untyped]) -> list[Key]:
    """Return the examples of a collated step (methods/batches.py)."""
    ids = step["input_ids"][0].tolist()
    lengths, examples, start, row = step["lengths"], [], 0, 0
    for rows in step["rows_of_examples"]:
        stop = start + sum(lengths[row : row + rows])
        examples.append(tuple(ids[start:stop]))
        start, row = stop, row + rows
    return examples


def _copies(dataset: Untyped, key: Key) -> int:
    if "input_ids" not in dataset.column_names:
        return 1  # here, the key is the number of a row
    places: list[int] = []
    start = 0
    for table in dataset.with_format("arrow").iter(10_000):
        lengths = table["input_ids"].combine_chunks().value_lengths().to_pylist()
        places += [start + i for i, length in enumerate(lengths) if length == len(key)]
        start += len(lengths)
    return max(1, sum(tuple(dataset[place]["input_ids"]) == key for place in places))
