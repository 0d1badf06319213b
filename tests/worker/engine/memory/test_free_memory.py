"""How much memory a container leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from tunesmith_worker.engine.memory.free_memory import HostPeak, host_free, read_free_memory

GIB = 2**30


def group(folder: Path, limit: str, used: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{used}\n")


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/slice/job\n")
    root = tmp_path / "fs"
    group(root / "slice" / "job", "max", 5)
    group(root / "slice", str(2 * GIB), GIB)
    assert host_free(root, own) == GIB
    group(root / "slice" / "job", str(GIB), GIB - 7)
    assert host_free(root, own) == 7
    group(root / "slice" / "job", str(GIB), 2 * GIB)
    assert host_free(root, own) == 0


def test_a_container_of_the_first_version_is_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(3 * GIB))
    (folder / "memory.usage_in_bytes").write_text(str(2 * GIB))
    assert host_free(tmp_path, tmp_path / "none") == GIB


def test_without_groups_it_is_what_the_host_has(tmp_path: Path) -> None:
    free = host_free(tmp_path, tmp_path / "none")
    assert 0.5 * free <= psutil.virtual_memory().available <= 2 * free


def test_what_the_process_holds_already_is_counted_as_room() -> None:
    with_model = read_free_memory(torch.device("cpu"), 64 * GIB)
    assert with_model.free >= 64 * GIB
    assert with_model.budget < with_model.free


def test_growth_of_resident_memory_is_seen() -> None:
    peak = HostPeak()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    del block
    growth = peak.growth()
    assert growth is None or 60 << 20 <= growth <= 200 << 20
