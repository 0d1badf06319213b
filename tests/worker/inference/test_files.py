"""The folder of adapters stays below its maximum size."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tunesmith_worker.inference import files
from tunesmith_worker.inference.files import FileStore, Registration, StoredFile

OpenStore = Callable[[Path, int], FileStore]


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Opens stores that are closed after the test."""
    with ExitStack() as stack:
        yield lambda folder, size: stack.enter_context(closing(FileStore(folder, size)))


def stored(store: FileStore, name: str, size: int, age: float) -> Registration:
    """Store and link a model with one file of `size` bytes that was used `age` seconds ago."""
    content = name[-1].encode() * size
    sha256 = hashlib.sha256(content).hexdigest()

    async def chunks() -> AsyncIterator[bytes]:
        yield content

    asyncio.run(store.put(chunks(), sha256))
    model = Registration(name, "base", "adapter", (StoredFile("a.safetensors", sha256),))
    store.link(model)
    used = time.time() - age
    os.utime(store._files / sha256, (used, used))
    return model


def test_the_models_that_were_unused_for_longest_lose_their_files(
    tmp_path: Path, open_store: OpenStore
) -> None:
    store = open_store(tmp_path, 250)
    models = [stored(store, f"ft:{n}", 100, age) for n, age in enumerate([9000, 5000, 7000])]
    assert store.bound(models) == [models[0]]
    assert store.missing(models[0].files) == ["a.safetensors"]
    assert not store.folder(models[0]).exists()
    assert store.missing(models[1].files + models[2].files) == []
    assert store.bound(models[1:]) == []
    store.used(models[2])
    third = stored(store, "ft:3", 100, 1000)
    assert store.bound([*models[1:], third]) == [models[1]]


def test_files_of_the_last_minutes_stay(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, 50)
    model = stored(store, "ft:0", 100, 60)
    assert store.bound([model]) == []
    monkeypatch.setattr(files, "_FRESH_SECONDS", 0.0)
    assert store.bound([model]) == [model]


def test_a_restarted_process_keeps_files_and_removes_leftovers(
    tmp_path: Path, open_store: OpenStore
) -> None:
    first = FileStore(tmp_path, 1000)
    model = stored(first, "ft:0", 100, 0)
    (tmp_path / "files" / "x.part").touch()
    other = FileStore(tmp_path, 1000)  # while the first one lives
    assert first.folder(model).exists()
    first.close()
    other.close()
    again = open_store(tmp_path, 1000)
    assert not again.folder(model).exists()
    assert again.missing(model.files) == []
    assert list((tmp_path / "files").glob("*.part")) == []
