"""The long tail is the set of tests that only `make test-full` runs.

`make test` takes less than 9 minutes, with at least one test for each path through the product.
One module per subject lists its tests.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from . import browser, engine, services, trainer
from .table import ALL, Rows

ROWS: Rows = browser.ROWS | engine.ROWS | services.ROWS | trainer.ROWS


def in_long_tail(node: str) -> bool:
    """Return True if only `make test-full` runs a test. `node`: its pytest id without tests/, such
    as `worker/trainer/test_run.py::test_a[b]`.
    """
    name, _, parameter = node.partition("[")
    file, _, function = name.partition("::")
    tests = next((row for path, row in ROWS.items() if _is_in(file, path)), {})
    kept = tests.get(function, tests.get(ALL))
    if kept is None:
        return False
    return not any(fnmatchcase(parameter.removesuffix("]"), pattern) for pattern in kept)


def _is_in(file: str, path: str) -> bool:
    return file.startswith(path) if path.endswith("/") else file == path
