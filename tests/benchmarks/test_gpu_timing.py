"""The clock of benchmarks.gpu, with a stand-in for the device's: what is timed, and what is not."""

from __future__ import annotations

import pytest
import torch
from benchmarks.gpu import timing


class Device:
    """Time passes on it only by what is enqueued."""

    def __init__(self) -> None:
        self.now = 0.0
        self.flushes = 0

    def zero_(self) -> None:
        self.flushes += 1
        self.now += 7.0

    def sleep(self, cycles: int) -> None:
        assert cycles > 1_000_000
        self.now += 100.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = made.now

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "_flush_buffer", lambda: made)
    return made


def test_the_median_is_of_the_operation_alone_and_without_the_warm_up(device: Device) -> None:
    taken = {"a": [50.0, 40.0, 3.0, 1.0, 2.0], "b": [9.0, 9.0, 4.0, 4.0, 8.0]}

    def run(name: str) -> None:
        device.now += taken[name].pop(0)

    sides = {"a": lambda: run("a"), "b": lambda: run("b")}
    found = timing.median_seconds(sides, torch.device("cuda"), repeats=3)
    assert found == {"a": pytest.approx(2e-3), "b": pytest.approx(4e-3)}
    assert device.flushes == 2 * 5
    assert taken == {"a": [], "b": []}


def test_products_are_counted_as_multiplications_and_additions() -> None:
    assert timing.operations([(2, 3, 4), (1, 1, 1)]) == 2 * 24 + 2


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "median_seconds", lambda *_: {"copy": 2.0})
    timing.copy_bytes_per_second.cache_clear()
    assert timing.copy_bytes_per_second(torch.device("cpu")) == (1 << 20)
    timing.copy_bytes_per_second.cache_clear()
