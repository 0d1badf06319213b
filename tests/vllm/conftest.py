"""Skips the tests of this folder where vLLM is not installed: `make test-vllm` runs them.

Tests with a service run in the environment of the service, and vLLM in its own.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
WITH_SERVICE = ("test_chat.py", "test_jobs.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = find_spec("vllm") is None
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            # vLLM's modules and this older transformers warn at import.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if missing and item.path.name not in WITH_SERVICE:
                reason = "vLLM is not installed: run make test-vllm"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def no_downloads() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
