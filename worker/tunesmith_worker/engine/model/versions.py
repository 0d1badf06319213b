"""Check that the trainer's environment has a supported version of transformers.

Our kernels replace parts of transformers' models, and these parts may change between versions.
"""

from __future__ import annotations

import re

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_schema.versions import UNINSTALLED, installed_version
from tunesmith_worker.rundir.errors import RunError

OLDEST, FIRST_TOO_NEW = (5, 17), (5, 24)
"""Supported versions of transformers: from OLDEST to the version before FIRST_TOO_NEW. The extra
`trainer` of pyproject.toml has the same range."""


def check_versions() -> None:
    """Raise RunError if transformers is missing or outside the range. Imports nothing heavy."""
    version = installed_version("transformers")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and OLDEST <= (int(numbers[1]), int(numbers[2])) < FIRST_TOO_NEW:
        return
    oldest, too_new = (".".join(map(str, one)) for one in (OLDEST, FIRST_TOO_NEW))
    missing = version == UNINSTALLED
    raise RunError(
        ErrorCode.VERSIONS_UNSUPPORTED,
        f"The trainer's Python has {'no transformers' if missing else f'transformers {version}'}; "
        f"Tunesmith needs at least {oldest} and below {too_new}.",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Install the extra [trainer] with constraints.txt, or with constraints-gpu.txt for "
        "vLLM, into the environment of TUNESMITH_TRAINER_PYTHON (default: the worker's own).",
    )
