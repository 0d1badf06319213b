"""Fixtures for all tests. One PostgreSQL, one Redis and one S3 start when the first test needs
them.

This module imports nothing of the server: the tests of a GPU run on machines that do not have its
packages.

TUNESMITH_TEST_DATABASE_URL and TUNESMITH_TEST_BROKER_URL select existing servers instead. The role
in the database URL must be allowed to create databases; the tests use only databases that they
create.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import caches
from .again import pytest_sessionfinish  # noqa: F401  a hook of pytest
from .browser import skipped
from .long_tail import in_long_tail

if TYPE_CHECKING:
    from .stacks import S3, PostgreSQL

_DEVICE_USE = tempfile.TemporaryDirectory(prefix="tunesmith-test-devices-")
os.environ["TUNESMITH_DEVICE_USE"] = _DEVICE_USE.name  # not the folder of other runs on this host

# Triton reads this variable at its first import. Without a GPU, its interpreter runs the kernels.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # trainers of the tests run in this process

# Must be imported before any training in this process, because process.quick_imports hides it from
# later imports. A GPU machine may not have it.
with suppress(ImportError):
    import bitsandbytes  # noqa: F401  the import itself is needed

STACKS = {"postgresql", "redis", "redis_url", "s3"}


def pytest_configure(config: pytest.Config) -> None:
    """Share caches between tests, except in runs of `timing` tests: these measure what a program
    needs by itself."""
    if config.option.markexpr != "timing":
        caches.share()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude all imported objects from garbage collection. Trainers do the same
    (process.quick_imports). Scanning these million objects took half of each run's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need more than SQLite, the embedded broker and a local directory. `make
    test-quick` leaves them out."""
    for item in items:
        timing = item.get_closest_marker("timing")
        if timing or in_long_tail(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.full)
        asked: set[str] = set(getattr(item, "fixturenames", ()))
        if callspec := getattr(item, "callspec", None):
            asked |= {str(value) for value in callspec.params.values()}
        if asked & STACKS:
            item.add_marker(pytest.mark.stacks)
    _skip_what_needs_a_gpu([item for item in items if item.get_closest_marker("gpu")])
    if hasattr(config, "workerinput"):  # one of several test processes
        items[:] = _in_order_of_files(items)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Say at the very end how many tests had no browser."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        line = skipped.summary(reporter.stats.get("skipped", []))
        if line is not None:
            reporter.write_line(line, yellow=True)


def _in_order_of_files(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order the test files: those with the longest timeout or the most tests first, with files that
    start a whole service spread among them. Two such files at once wait for each other's trainers;
    one at the end leaves a core idle."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kinds: dict[bool, list[list[pytest.Item]]] = {True: [], False: []}
    for file in sorted(files.values(), key=_expected_time, reverse=True):
        kinds[all(item.get_closest_marker("slow") for item in file)].append(file)
    placed = [(i / len(kind), file) for kind in kinds.values() for i, file in enumerate(kind)]
    return [item for _, file in sorted(placed, key=lambda one: one[0]) for item in file]


def _expected_time(file: list[pytest.Item]) -> tuple[float, int]:
    """Return the longest timeout of the file's tests, 0 for the default, and their number."""
    marks = [mark for item in file if (mark := item.get_closest_marker("timeout"))]
    return max((float(mark.args[0]) for mark in marks), default=0.0), len(file)


@pytest.fixture(autouse=True, scope="module")
def few_objects_for_the_garbage_collector() -> Iterator[None]:
    """Exclude what earlier files imported from garbage collection: a trainer collects twice. What a
    file did not close is reported in this file."""
    yield
    gc.collect()
    gc.freeze()


def _skip_what_needs_a_gpu(items: list[pytest.Item]) -> None:
    if items:
        import torch  # a GPU test has already imported it

        if not torch.cuda.is_available():
            for item in items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def umask_of_one_test() -> Iterator[None]:
    """Restore the umask after each test. Our programs narrow it, also if a test calls them in its
    own process. Then the account of the next PostgreSQL could not enter its folders."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    from .stacks import PostgreSQL, postgresql_server

    with ExitStack() as stack:
        given = os.environ.get("TUNESMITH_TEST_DATABASE_URL")
        server = PostgreSQL(given or stack.enter_context(postgresql_server()))
        stack.callback(server.close)
        yield server


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := os.environ.get("TUNESMITH_TEST_BROKER_URL"):
        yield given
        return
    from .stacks import redis_server

    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    from .stacks import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
