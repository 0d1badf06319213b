"""A tripwire of benchmarks/layouts.py: one tiny cell is measured. No time is asserted."""

from __future__ import annotations

import pytest
import torch
from benchmarks.layouts import measure

FIELDS = {
    *("model", "lengths", "rows", "chosen", "fastest", "seconds", "slower", "cost"),
    *("trial_steps", "trial_seconds"),
}


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_tiny_cell_is_measured() -> None:
    cell = measure("tiny", "even-16", 4, rounds=2)
    assert cell.keys() == FIELDS
    assert (cell["model"], cell["lengths"], cell["rows"]) == ("tiny", "even-16", 4)
    assert {"padded", "padding_free"} <= cell["seconds"].keys()
    assert all(seconds > 0 for seconds in cell["seconds"].values())
    assert cell["chosen"] in cell["seconds"]
    assert cell["seconds"][cell["fastest"]] == min(cell["seconds"].values())
    assert cell["slower"] >= 0
    assert cell["cost"] >= 0
