"""Figures about the rows of a data set, and its overlap with another one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Response

MAX_BINS = 40
MAX_EXAMPLES = 20
MAX_COMPARED_ROWS = 500_000
"""Row number up to which rows are compared with those of another file."""


class LengthBin(Response):
    """Number of rows in a range of lengths."""

    upto: int
    """Largest length in the bin, in characters; the bin starts behind the bin before it."""
    rows: int
    """Number of rows in the bin."""


class RowLengths(Response):
    """Lengths of the readable rows, in characters of their texts without names of fields and
    roles."""

    total: int
    """Sum of all lengths."""
    min: int
    """Shortest row."""
    median: int
    """Half of the rows are not longer."""
    p95: int
    """95 % of the rows are not longer."""
    max: int
    """Longest row."""
    histogram: list[LengthBin] = Field(max_length=MAX_BINS)
    """Bins of equal width up to the longest row; the last bin has the rest."""


class RepeatedRow(Response):
    """A row that occurs more than once."""

    row: int
    """Row number of its first occurrence, from 1."""
    count: int
    """Number of its occurrences."""
    next: int
    """Row number of its second occurrence."""


class FileStats(Response):
    """Lengths and duplicates of the rows of a data set."""

    object: Literal["file.stats"] = "file.stats"
    rows: int
    """Number of readable rows."""
    lengths: RowLengths | None = None
    """Lengths in characters; null if no row can be read. Tokens depend on the model: a run report
    counts them."""
    duplicates: int = 0
    """Number of rows that are equal to an earlier row."""
    repeated: list[RepeatedRow] = Field(default_factory=list, max_length=MAX_EXAMPLES)
    """Rows that occur most often, first."""


class RowPair(Response):
    """A row of a file that is equal to a row of another file."""

    row: int
    """Row number, from 1."""
    other: int
    """Row number of its first occurrence in the other file."""


class FileOverlap(Response):
    """Rows of a file that another file has too."""

    object: Literal["file.overlap"] = "file.overlap"
    file_id: str
    """File whose rows are looked up."""
    other_id: str
    """File that has them too."""
    rows: int
    """Number of rows of the file that the other file has too."""
    share: float
    """`rows` as a share of the file's readable rows, from 0 to 1."""
    pairs: list[RowPair] = Field(max_length=MAX_EXAMPLES)
    """First of these rows."""
