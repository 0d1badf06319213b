"""A day of jobs on the real claim code with a virtual clock: nothing is lost or doubled, shares are
fair, and the same day gives the same schedule. `benchmarks/schedule.py` plays whole weeks."""

from __future__ import annotations

from pathlib import Path

from benchmarks.schedule import play
from benchmarks.schedule_parts.figures import figures
from benchmarks.schedule_parts.week import GIB, Week, draw
from benchmarks.schedule_parts.world import Record

DEVICES = (24 * GIB, 24 * GIB, 48 * GIB, 80 * GIB)


def drawn(weights: tuple[float, ...], num_jobs: int, hours: float) -> Week:
    return draw(
        seed=3, hours=hours, weights=weights, devices=DEVICES, num_jobs=num_jobs, load=1.3,
        users=6, deaths=2,
    )  # fmt: skip


def played(week: Week, folder: Path, estimates_every: float | None = None) -> Record:
    folder.mkdir()
    return play(week, folder, estimates_every)


def test_hours_with_deaths_lose_and_double_nothing(tmp_path: Path) -> None:
    week = drawn((1.0, 1.0), 20, 6.0)
    found = figures(week, played(week, tmp_path / "a"))
    assert (found["lost"], found["doubled"], found["starved"]) == (0, 0, 0)
    assert found["preempted_again_within_10_min"] == 0
    assert found["refused_stale_reports"] > 0
    assert found["jain"] >= 0.95


def test_the_same_hours_give_the_same_schedule(tmp_path: Path) -> None:
    week = drawn((1.0, 1.0), 20, 6.0)
    first, second = (played(week, tmp_path / name).claims for name in ("a", "b"))
    assert len(first) > 20
    assert first == second


def test_a_day_is_fair_and_quick_for_short_jobs(tmp_path: Path) -> None:
    week = drawn((1.0, 3.0), 160, 24.0)
    found = figures(week, played(week, tmp_path / "a", estimates_every=3600.0))
    assert (found["lost"], found["doubled"], found["starved"]) == (0, 0, 0)
    assert found["worst_share_error"] < 0.1
    assert found["interactive_wait_p95_s"] < 60
    assert found["estimate_error_median"] < 0.25
