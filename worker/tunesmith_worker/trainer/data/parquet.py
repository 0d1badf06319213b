"""Parquet as rows, in bounded memory: a tiny file can say that it expands to gigabytes.

Knows nothing of row formats. What a file may expand to follows from its own size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_EXPANDED = 8 * 2**30
"""Bytes of decoded columns, however large the file."""
ALWAYS_ALLOWED = 256 * 2**20
RATIO = 100
"""Text that compresses further than this is one text repeated."""
_BYTES_PER_VALUE = 64
"""What a value costs in Python, even an empty one that takes no byte of the file."""
_BATCH_BYTES = 256 * 2**20
_BATCH_ROWS = 1000


class Unreadable(ValueError):
    """Why the file cannot be read on."""


def read_parquet(path: Path) -> Iterator[Any]:  # Any: whatever the columns hold
    """The rows, one by one. Raises Unreadable, also in the middle."""
    for batch, _ in read_batches(path):
        yield from batch.to_pylist()


def read_batches(path: Path) -> Iterator[tuple[Any, float]]:  # Any: pyarrow is untyped
    """The rows as record batches, each with the share of the file's rows that is read by then.
    Raises Unreadable, also in the middle."""
    # Imported here: only Parquet files need it, and it takes 0.1 s.
    import pyarrow as pa
    import pyarrow.parquet as pq

    limit = min(MOST_EXPANDED, max(ALWAYS_ALLOWED, RATIO * path.stat().st_size))
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            largest_group = _check_announced(file.metadata, limit)
            # A dictionary may hold one huge value that every row repeats: a row group's size bounds
            # that value, so it also bounds what so many rows can expand to.
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, largest_group)))
            expanded = read = 0
            for batch in file.iter_batches(batch_size=rows, use_threads=False):
                expanded += batch.nbytes
                if expanded > limit:
                    raise _bomb(expanded, limit)
                read += batch.num_rows
                yield batch, read / file.metadata.num_rows
    except MemoryError as error:
        raise Unreadable(f"not readable as Parquet in the memory allowed for it: {error}") from None
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"not readable as Parquet: {error}".strip()) from None


def _check_announced(metadata: Any, limit: int) -> int:  # Any: pyarrow is untyped
    """Refuse a file that says itself that it is too much; gives its largest row group's bytes."""
    largest = total = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        values = sum(column.num_values for column in columns)
        size = sum(column.total_uncompressed_size for column in columns)
        largest = max(largest, size)
        total += max(size, values * _BYTES_PER_VALUE)
        if total > limit:
            raise _bomb(total, limit)
    return largest


def _bomb(expanded: int, limit: int) -> Unreadable:
    return Unreadable(
        f"the file expands to at least {expanded:,} bytes; the limit for its size is "
        f"{limit:,}. Split it, or send it as JSONL"
    )
