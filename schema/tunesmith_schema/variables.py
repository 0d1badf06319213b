"""All TUNESMITH_* variables, and hints for misspelled names.

Server, worker and client may run with the same environment variables. To find misspelled names,
each program must know the names of all variables. A program must not import the settings of the
other programs, so this module lists the names. A test compares the list with the settings classes
and docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

PREFIX = "TUNESMITH_"
TESTS = "TUNESMITH_TEST_"
"""Prefix of variables that only tests read."""

_NAMES = (
    "API_KEY",
    "BASE_MODELS",
    "BASE_URL",
    "BROKER_URL",
    "CA_FILE",
    "DATABASE_URL",
    "DATA_DIR",
    "DEVICE_USE",
    "HELLO_FILE",
    "HOST",
    "INFERENCE_CACHE",
    "INFERENCE_CACHE_BYTES",
    "INFERENCE_CHILD",
    "INFERENCE_DEVICE",
    "INFERENCE_IDLE_SECONDS",
    "INFERENCE_MAX_LORA_RANK",
    "INFERENCE_TOKEN",
    "INFERENCE_URL",
    "INFERENCE_VLLM_MODEL",
    "INFERENCE_VLLM_OPTIONS",
    "INFERENCE_VLLM_SOCKET",
    "JANITOR_SECONDS",
    "LEASE_SECONDS",
    "MAX_CONNECTIONS_PER_ADDRESS",
    "MAX_FILE_BYTES",
    "MAX_LOSSES",
    "MODEL_DIRS",
    "PORT",
    "PRESIGNED_SECONDS",
    "PROJECT",
    "RELEASE_SECONDS",
    "REQUESTS_PER_MINUTE",
    "RESUME_POINT_DAYS",
    "RETRY_SECONDS",
    "ROLLOUT_TOKEN",
    "ROLLOUT_URL",
    "SERVER_URL",
    "SPAWNED_AT",
    "STORAGE_URL",
    "SUPERVISOR_PID",
    "TLS_CERT",
    "TLS_KEY",
    "TOKEN_CACHE",
    "TRAINER_PYTHON",
    "TRUSTED_PROXIES",
    "WARM_TRAINER",
    "WORKER_LABELS",
    "WORKER_TOKEN",
)
VARIABLES = frozenset(PREFIX + name for name in _NAMES)


def unknown_variable_warnings(names: Iterable[str]) -> list[str]:
    """Return a warning for each of `names` that has our prefix but is not a setting."""
    warnings = []
    for name in sorted(names):
        upper = name.upper()  # setting names are not case-sensitive
        if not upper.startswith(PREFIX) or upper.startswith(TESTS) or upper in VARIABLES:
            continue
        near = get_close_matches(upper.removeprefix(PREFIX), _NAMES, n=1)
        hint = "docs/reference/settings.md lists every variable"
        advice = f"did you mean {PREFIX}{near[0]}?" if near else hint
        warnings.append(f"{name} is not a setting and has no effect: {advice}")
    return warnings
