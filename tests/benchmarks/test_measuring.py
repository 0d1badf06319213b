"""The benchmarks' own instruments: each must be able to find what it is there to find."""

from __future__ import annotations

import mmap
import os
import time

from benchmarks.service_parts.load import spread
from benchmarks.service_parts.process_use import cpu_seconds, idle_share, watched
from benchmarks.service_parts.watchers import Seen


def test_a_watcher_counts_what_is_lost_repeated_or_out_of_order() -> None:
    seen = Seen()
    for number in (1, 2, 2, 4, 3, 7):
        seen.take(number)
    assert (seen.last, seen.lost, seen.repeated) == (7, 3, 2)


def test_a_watcher_that_got_all_in_order_counts_nothing() -> None:
    seen = Seen()
    for number in range(1, 50):
        seen.take(number)
    assert (seen.last, seen.lost, seen.repeated) == (49, 0, 0)


def test_memory_used_for_a_moment_is_seen() -> None:
    # a mapping of its own: the heap may have as much left over from earlier tests
    with watched(os.getpid()) as use, mmap.mmap(-1, 80_000_000) as block:
        for place in range(0, len(block), mmap.PAGESIZE):
            block[place] = 1
    assert 75 < use.rss_growth_mb < 120


def test_cpu_time_is_that_of_the_process_alone() -> None:
    began = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - began < 0.1:
        sum(range(10_000))
    with watched(os.getpid()) as use:
        time.sleep(0.3)
    assert use.cpu_seconds < 0.1


def test_a_slow_hundredth_moves_the_p99_and_not_the_median() -> None:
    figures = spread([0.001] * 98 + [0.5] * 2)
    assert figures == {"p50": 1.0, "p99": 500.0, "max": 500.0}


def test_idle_share_is_of_all_time() -> None:
    assert idle_share((10.0, 100.0), (15.0, 120.0)) == 0.25
