"""The wall clock: every moment in one phase; on a GPU, the device's time and not the host's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunesmith_schema import PhaseName
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.trainer.report.cuda import CudaTimeline


class Time:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_every_moment_belongs_to_the_innermost_phase() -> None:
    time = Time()
    clock = WallClock(time)
    time.passes(1)
    with clock.during(PhaseName.DATA):
        time.passes(2)
        with clock.during(PhaseName.PACK):
            time.passes(4)
        time.passes(8)
    time.passes(16)
    assert clock.read() == {"other": 17, "data": 10, "pack": 4}
    assert sum(clock.read().values()) == clock.wall == 31


def test_a_phase_that_ends_badly_is_accounted_for_all_the_same() -> None:
    time = Time()
    clock = WallClock(time)

    def break_down() -> None:
        with clock.during(PhaseName.LOAD):
            time.passes(3)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        break_down()
    time.passes(1)
    assert clock.read() == {"load": 3, "other": 1}


def test_what_goes_on_is_in_the_reading() -> None:
    time = Time()
    clock = WallClock(time)
    clock.switch(PhaseName.IMPORT)
    time.passes(5)
    assert clock.read()["import"] == 5


class Gpu:
    """A device that does what it is given one after the other; events tell when it got there."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.free_at = 0.0
        """When it will have done all that it was given."""

    def work(self, seconds: float) -> None:
        self.free_at = max(self.free_at, self.time.now) + seconds

    def wait(self) -> None:
        self.time.now = max(self.time.now, self.free_at)


class Event:
    gpu: Gpu

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = max(self.gpu.free_at, self.gpu.time.now)

    def query(self) -> bool:
        return self.gpu.time.now >= self.at

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu(Time())
    Event.gpu = gpu
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.wait)
    return gpu


def train(gpu: Gpu, steps: int, **cost: float) -> tuple[WallClock, CudaTimeline]:
    """`host`: seconds the host needs to launch each part; `forward`, `backward`, `optimizer`: the
    GPU's seconds; `data`: collating; `log`: 1 waits for the GPU each step, 0 never."""
    clock = WallClock(gpu.time)
    timeline = CudaTimeline(clock.charge)
    clock.follow(timeline)
    for _ in range(steps):
        with clock.during(PhaseName.DATA_WAIT):
            gpu.time.passes(cost["data"])
        for phase in (PhaseName.FORWARD, PhaseName.BACKWARD, PhaseName.OPTIMIZER):
            clock.switch(phase)
            gpu.time.passes(cost["host"])
            gpu.work(cost[phase])
        clock.switch(PhaseName.LOGGING)
        if cost["log"]:
            gpu.wait()
        gpu.time.passes(0.001)
        clock.switch(PhaseName.TRAIN)
    clock.unfollow()
    return clock, timeline


def test_the_gpu_s_work_in_rollouts_counts_where_it_was_asked_for(gpu: Gpu) -> None:
    """Generation reads every token, the reference model's passes are only launched."""
    clock = WallClock(gpu.time)
    clock.follow(CudaTimeline(clock.charge))
    for _ in range(10):
        clock.switch(PhaseName.DATA_WAIT)
        gpu.time.passes(0.01)
        with clock.during(PhaseName.SYNC):
            gpu.time.passes(0.001)
            gpu.work(0.05)
        with clock.during(PhaseName.GENERATE):
            for _ in range(20):
                gpu.work(0.02)
                gpu.wait()
        with clock.during(PhaseName.GRADE):
            gpu.time.passes(0.03)
        with clock.during(PhaseName.LOG_PROBS):
            gpu.time.passes(0.001)
            gpu.work(0.2)
        for phase in (PhaseName.FORWARD, PhaseName.BACKWARD, PhaseName.OPTIMIZER):
            clock.switch(phase)
            gpu.time.passes(0.001)
            gpu.work(0.1)
        clock.switch(PhaseName.TRAIN)
    clock.unfollow()
    spent = clock.read()
    expected = {"sync": 0.5, "generate": 4.0, "grade": 0.3, "log_probs": 2.0, "forward": 1.0}
    assert {name: spent[name] for name in expected} == pytest.approx(expected, rel=0.03)
    assert sum(spent.values()) == pytest.approx(clock.wall)
    assert spent.get("other", 0.0) < 0.03 * clock.wall


BUSY: dict[str, Any] = {
    **{"host": 0.002, "forward": 0.1, "backward": 0.2, "optimizer": 0.05, "data": 0.02, "log": 0}
}


def test_the_gpu_s_time_counts_where_it_is_the_slower_one(gpu: Gpu) -> None:
    clock, timeline = train(gpu, 100, **BUSY)
    spent = clock.read()
    assert spent["forward"] == pytest.approx(10, rel=0.01)
    assert spent["backward"] == pytest.approx(20, rel=0.01)
    assert spent["optimizer"] == pytest.approx(5, rel=0.01)
    # Only the first batch was waited for: the others were collated while the GPU worked.
    assert spent["data_wait"] == pytest.approx(0.02, abs=0.005)
    assert sum(spent.values()) == pytest.approx(clock.wall)
    assert timeline.waits == 0


def test_after_a_wait_for_the_gpu_only_what_comes_later_holds_it_up(gpu: Gpu) -> None:
    clock, _ = train(gpu, 100, **BUSY | {"log": 1})
    spent = clock.read()
    assert spent["data_wait"] == pytest.approx(100 * 0.02, rel=0.02)
    assert spent["backward"] == pytest.approx(20, rel=0.02)
    assert spent["logging"] == pytest.approx(0.1, rel=0.05)  # its wait was the GPU's work
    assert sum(spent.values()) == pytest.approx(clock.wall)


def test_a_gpu_that_waits_for_its_host_is_noticed(gpu: Gpu) -> None:
    slow_host = {"host": 0.1, "forward": 0.01, "backward": 0.01, "optimizer": 0.01}
    clock, timeline = train(gpu, 50, **BUSY | slow_host)
    assert timeline.steps == 50
    assert timeline.waits == 50
    # While a batch was collated the GPU still stepped the optimiser: 10 ms less the logging.
    assert clock.read()["data_wait"] == pytest.approx(0.02 + 49 * 0.011)
    assert sum(clock.read().values()) == pytest.approx(clock.wall)


def test_each_pass_is_told_in_order_once_it_is_known(gpu: Gpu) -> None:
    told: list[tuple[str, float]] = []
    clock = WallClock(gpu.time)
    clock.computed = lambda phase, seconds: told.append((phase, round(seconds, 6)))
    clock.follow(CudaTimeline(clock.charge))
    clock.switch(PhaseName.FORWARD)
    gpu.work(1)
    clock.switch(PhaseName.BACKWARD)
    gpu.work(2)
    clock.switch(PhaseName.TRAIN)
    assert told == []
    clock.unfollow()
    assert told == [("forward", 1), ("backward", 2)]


@pytest.mark.gpu
def test_on_a_real_gpu_the_phases_sum_to_the_wall_time() -> None:
    weight = torch.randn(4096, 4096, device="cuda")
    clock = WallClock()
    clock.follow(CudaTimeline(clock.charge))
    for _ in range(20):
        for phase in (PhaseName.FORWARD, PhaseName.BACKWARD):
            clock.switch(phase)
            for _ in range(1 if phase == PhaseName.FORWARD else 2):
                weight @ weight
        clock.switch(PhaseName.TRAIN)
    clock.unfollow()
    spent = clock.read()
    assert sum(spent.values()) == pytest.approx(clock.wall, rel=0.01)
    assert 1.5 < spent["backward"] / spent["forward"] < 2.7
