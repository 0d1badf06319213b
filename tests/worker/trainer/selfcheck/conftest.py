"""Runs with the self-check, which the other tests of the worker leave out."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def recipe_defaults() -> dict[str, Any]:
    return {"evaluate": False}
