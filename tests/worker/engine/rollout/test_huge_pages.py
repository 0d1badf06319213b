"""Huge pages under packed weights: contents stay, memory moves, and nothing else happens."""

from __future__ import annotations

import ctypes
import mmap
import platform
from pathlib import Path

import pytest
import torch

from tunesmith_worker.engine.rollout import linear
from tunesmith_worker.engine.rollout.linear import use_huge_pages

MIB = 1 << 20
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _huge_bytes(address: int) -> int:
    """Of the mapping that holds `address`, in huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            start, end = (int(one, 16) for one in head.split("-"))
            inside = start <= address < end
        elif inside and head == "AnonHugePages:":
            return int(line.split()[1]) << 10
    raise AssertionError("no such mapping")


def _linux_has_collapse() -> bool:
    release = platform.release().split(".")
    return THP.exists() and (int(release[0]), int(release[1])) >= (6, 1)


@pytest.mark.skipif(not _linux_has_collapse(), reason="MADV_COLLAPSE came with Linux 6.1")
def test_the_pages_around_are_huge_and_hold_what_they_held() -> None:
    memory = mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[:] = bytes(range(256)) * (16 * MIB // 256)
    memory.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    use_huge_pages(address + 5 * MIB, MIB // 16)
    assert _huge_bytes(address) == 0, "too short for a page"
    use_huge_pages(address + 5 * MIB + 12, 3 * MIB)
    assert _huge_bytes(address) >= 4 * MIB
    assert memory[:] == bytes(range(256)) * (16 * MIB // 256)


def test_memory_with_others_gaps_and_ends_beside_it_is_no_error() -> None:
    memory = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_huge_pages(ctypes.addressof(ctypes.c_char.from_buffer(memory)), MIB)
    use_huge_pages(0, MIB)


def test_packed_weights_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(linear, "use_huge_pages", lambda *given: asked.append(given))
    weight = torch.randn(64, 32)
    if not linear.can_pack(weight.dtype, weight.device):
        pytest.skip("torch has no oneDNN here")
    linear.make_linear(weight, None, 4)
    ((address, size),) = asked
    assert address != 0
    assert size >= weight.numel() * 4
