"""Statistics of the rows of a data set, and its overlap with another data set."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Response

MAX_BINS = 40
MAX_EXAMPLES = 20
MAX_COMPARED_ROWS = 500_000
"""Last row number that is compared with another file; later rows are ignored."""


class LengthBin(Response):
    """Number of rows in a range of lengths."""

    upto: int
    """Largest length in the bin, in characters. The bin starts after the largest length of the
    previous bin."""
    rows: int
    """Number of rows in the bin."""


class RowLengths(Response):
    """Lengths of the readable rows, in characters. Only texts count, not the names of fields and
    roles."""

    total: int
    """Sum of all lengths."""
    min: int
    """Length of the shortest row."""
    median: int
    """Median length: half of the rows are not longer."""
    p95: int
    """Length that 95 % of the rows do not exceed."""
    max: int
    """Length of the longest row."""
    histogram: list[LengthBin] = Field(max_length=MAX_BINS)
    """Histogram of the lengths. All bins have the same width except the last one, which ends at the
    longest row."""


class RepeatedRow(Response):
    """A row that occurs more than once."""

    row: int
    """Row number of the row's first occurrence, from 1."""
    count: int
    """Number of the row's occurrences."""
    next: int
    """Row number at which the same row occurs again."""


class FileStats(Response):
    """Lengths and duplicates of the rows of a data set."""

    object: Literal["file.stats"] = "file.stats"
    rows: int
    """Number of readable rows."""
    lengths: RowLengths | None = None
    """Lengths in characters; null if no row can be read. Lengths in tokens depend on the model and
    are in run reports."""
    duplicates: int = 0
    """Number of rows that are equal to an earlier row."""
    repeated: list[RepeatedRow] = Field(default_factory=list, max_length=MAX_EXAMPLES)
    """Examples of repeated rows, the most frequent first."""


class RowPair(Response):
    """A row of a file that is equal to a row of another file."""

    row: int
    """Row number, from 1."""
    other: int
    """Row number of the equal row's first occurrence in the other file."""


class FileOverlap(Response):
    """Rows of a file that are also in another file."""

    object: Literal["file.overlap"] = "file.overlap"
    file_id: str
    """Id of the file whose rows are looked up."""
    other_id: str
    """Id of the file in which the rows are looked up."""
    rows: int
    """Number of rows of the file that are also in the other file."""
    share: float
    """Share of the file's readable rows that are also in the other file, from 0 to 1."""
    pairs: list[RowPair] = Field(max_length=MAX_EXAMPLES)
    """First rows that are in both files."""
