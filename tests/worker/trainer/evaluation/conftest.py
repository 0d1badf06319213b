"""Runs of these tests evaluate their result."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith_worker.trainer.evaluation import supervised


@pytest.fixture
def recipe_defaults() -> dict[str, Any]:
    return {"self_check": False}


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "MAX_ANSWER_TOKENS", 4)
