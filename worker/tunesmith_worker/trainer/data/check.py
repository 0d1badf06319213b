"""Validate one uploaded file: `python -m tunesmith_worker.trainer.data.check PATH FILENAME`.

The program prints a `FileFindings` as JSON. The supervisor runs this program as a child process
(`supervisor/child/check_upload.py`), with a limit on memory.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

from tunesmith_schema import FileFindings
from tunesmith_worker.rundir.process import die_with_supervisor

from .statistics import RowStatistics
from .validate import validate_file

BASE_MEMORY = 2 * 2**30
MEMORY_PER_BYTE = 16
"""Bytes of memory allowed per byte of the file.

A JSON array is read completely, and its Python objects take up to ten times the size of the file.
"""


def main(path: Path, filename: str) -> None:
    limit = BASE_MEMORY + MEMORY_PER_BYTE * path.stat().st_size
    _, maximum = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(ValueError, OSError):  # the operator's own limit is lower
        resource.setrlimit(resource.RLIMIT_DATA, (limit, maximum))
    try:
        statistics = RowStatistics()
        result = validate_file(path, filename, statistics)
        findings = FileFindings(
            result=result,
            stats=statistics.figures(),
            row_hashes=statistics.packed_hashes(),
        )
    except MemoryError:
        sys.exit(f"reading needs more than {limit:,} bytes of memory; split the file")
    sys.stdout.write(findings.model_dump_json())


if __name__ == "__main__":
    die_with_supervisor()
    main(Path(sys.argv[1]), sys.argv[2])
