"""Lengths, duplicates and hashes of the rows of a data set.

This module imports no torch and no tokenizer, because it runs in light workers (workers that only
validate uploads).
"""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from collections.abc import Iterator
from typing import Any

from tunesmith_schema.file_stats import (
    MAX_BINS,
    MAX_COMPARED_ROWS,
    MAX_EXAMPLES,
    FileStats,
    LengthBin,
    RepeatedRow,
    RowLengths,
)

from .records import Record

_ROLES = ("role", "from")
_BINS = 20
"""Number of histogram bins up to the 95th percentile of the row lengths. Rounding of the bin width
may change the number of bins."""


class RowStatistics:
    """Statistics of rows that are added one by one; a row takes 16 bytes of memory."""

    def __init__(self) -> None:
        self._lengths = array("q")
        self._numbers = array("q")
        self._hashes = array("Q")

    def add(self, record: Record) -> None:
        """Add a record; unreadable records are ignored."""
        if record.problem is not None:
            return
        try:
            text = json.dumps(record.value, sort_keys=True, default=str, separators=(",", ":"))
        except (RecursionError, TypeError, ValueError):
            return  # the validation refuses the row
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        self._numbers.append(record.number)
        self._hashes.append(int.from_bytes(digest, "little") or 1)
        self._lengths.append(sum(map(len, _texts(record.value))))

    def figures(self) -> FileStats:
        """Return statistics of the rows' lengths and duplicates."""
        duplicates, repeated = self._repeated()
        return FileStats(
            rows=len(self._lengths), lengths=self._row_lengths(), duplicates=duplicates,
            repeated=repeated,
        )  # fmt: skip

    def packed_hashes(self) -> str | None:
        """Return the hashes of all rows, encoded as base64. Each row has eight bytes, which are
        zero if the row is not readable. Return None if a row number exceeds MAX_COMPARED_ROWS."""
        last = self._numbers[-1] if self._numbers else 0
        if last > MAX_COMPARED_ROWS:
            return None
        packed = array("Q", bytes(8 * last))
        for number, value in zip(self._numbers, self._hashes, strict=True):
            packed[number - 1] = value
        return base64.b64encode(packed.tobytes()).decode()

    def _row_lengths(self) -> RowLengths | None:
        import numpy as np  # here, because only this program needs it

        if not self._lengths:
            return None
        lengths = np.sort(np.frombuffer(self._lengths, dtype=np.int64))
        last = len(lengths) - 1
        median, p95 = int(lengths[last // 2]), int(lengths[last * 95 // 100])
        longest = int(lengths[-1])
        width = _round_width(max(1, p95) / _BINS)
        edges = [width * number for number in range(1, MAX_BINS)]
        edges = [*[edge for edge in edges if edge < longest], longest]
        below = np.searchsorted(lengths, edges, side="right")
        counts = np.diff(below, prepend=0)
        return RowLengths(
            total=int(lengths.sum()), min=int(lengths[0]), median=median, p95=p95, max=longest,
            histogram=[
                LengthBin(upto=edge, rows=int(count))
                for edge, count in zip(edges, counts, strict=True)
            ],
        )  # fmt: skip

    def _repeated(self) -> tuple[int, list[RepeatedRow]]:
        import numpy as np

        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        if len(hashes) < 2:
            return 0, []
        order = np.argsort(hashes, kind="stable")  # equal rows stay in the order of the file
        starts = np.flatnonzero(np.diff(hashes[order], prepend=hashes[order[:1]] ^ np.uint64(1)))
        counts = np.diff(starts, append=len(hashes))
        many = np.flatnonzero(counts > 1)
        firsts = order[starts[many]]
        often = np.lexsort((firsts, -counts[many]))[:MAX_EXAMPLES]
        repeated = [
            RepeatedRow(
                row=self._numbers[int(order[starts[at]])],
                count=int(counts[at]),
                next=self._numbers[int(order[starts[at] + 1])],
            )
            for at in many[often]
        ]
        return len(hashes) - len(starts), repeated


def _texts(value: Any) -> Iterator[str]:  # Any: JSON, or what Parquet holds
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _ROLES:
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _round_width(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is not below `least`."""
    width = 1
    while True:
        for factor in (1, 2, 5):
            if width * factor >= least:
                return width * factor
        width *= 10
