"""Every TUNESMITH_* variable that some process reads, and what to say of one that none does.

The processes of one tree share an environment, and none may import another's settings: so the names
stand here, and a test holds them to the settings classes and to docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

PREFIX = "TUNESMITH_"
TESTS = "TUNESMITH_TEST_"
"""What only the tests read."""

_NAMES = (
    "API_KEY",
    "BASE_URL",
    "BROKER_URL",
    "CA_FILE",
    "DATABASE_URL",
    "DATA_DIR",
    "HELLO_FILE",
    "HOST",
    "JANITOR_SECONDS",
    "LEASE_SECONDS",
    "MAX_FILE_BYTES",
    "MAX_LOSSES",
    "MODEL_DIRS",
    "PORT",
    "PRESIGNED_SECONDS",
    "PROJECT",
    "RELEASE_SECONDS",
    "RETRY_SECONDS",
    "SERVER_URL",
    "SPARE_TRAINER",
    "SPAWNED_AT",
    "STORAGE_URL",
    "SUPERVISOR_PID",
    "TLS_CERT",
    "TLS_KEY",
    "TOKEN_CACHE",
    "TRAINER_PYTHON",
    "TRUSTED_PROXIES",
    "WORKER_TOKEN",
)
VARIABLES = frozenset(PREFIX + name for name in _NAMES)


def misspelled(names: Iterable[str]) -> list[str]:
    """One sentence for each of `names` (of an environment) that looks like ours and is not."""
    said = []
    for name in sorted(names):
        # Settings are read whatever the case of their names.
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper.startswith(TESTS) or upper in VARIABLES:
            continue
        near = get_close_matches(upper.removeprefix(PREFIX), _NAMES, n=1)
        hint = "docs/reference/settings.md lists every variable"
        advice = f"did you mean {PREFIX}{near[0]}?" if near else hint
        said.append(f"{name} is not a setting and has no effect: {advice}")
    return said
