"""Fixture that lets the comparison take the whole step, however busy the machine is."""

from __future__ import annotations

import math

import pytest

from tunesmith_worker.trainer.selfcheck.shadow import budget


@pytest.fixture(autouse=True)
def whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SECONDS", math.inf)
