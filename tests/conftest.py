"""One PostgreSQL, one Redis and one S3 for all tests, started when the first test asks for them.

TUNESMITH_TEST_DATABASE_URL and TUNESMITH_TEST_BROKER_URL name servers to use instead: a database
whose role may create others (the tests touch none but their own), and a Redis.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from .long_tail import in_long_tail
from .stacks import S3, PostgreSQL, postgresql_server, redis_server, s3_server

# Triton reads this when anybody first imports it: without a GPU its kernels are interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before all that trains in this process, and hides it then from what is imported later
# (process.quick_imports). A GPU machine may be without.
with suppress(ImportError):
    import bitsandbytes  # noqa: F401  what matters is that it is imported

STACKS = {"postgresql", "redis", "redis_url", "s3"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the test files import stays for good, and the garbage collector leaves it alone, as in
    a trainer (process.quick_imports): walking these million objects was half of each run's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs more than SQLite, the embedded broker and a local directory: `make
    test-quick` leaves it out."""
    for item in items:
        if in_long_tail(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.full)
        asked: set[str] = set(getattr(item, "fixturenames", ()))
        if callspec := getattr(item, "callspec", None):
            asked |= {str(value) for value in callspec.params.values()}
        if asked & STACKS:
            item.add_marker(pytest.mark.stacks)
    _skip_what_needs_a_gpu([item for item in items if item.get_closest_marker("gpu")])
    if hasattr(config, "workerinput"):  # of several processes
        items[:] = _in_order_of_files(items)


def _in_order_of_files(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files of many tests first, and those of whole services spread among them: two of these at
    once wait for each other's trainers, and one of them at the end leaves a core idle."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kinds: dict[bool, list[list[pytest.Item]]] = {True: [], False: []}
    for file in sorted(files.values(), key=len, reverse=True):
        kinds[all(item.get_closest_marker("slow") for item in file)].append(file)
    placed = [(i / len(kind), file) for kind in kinds.values() for i, file in enumerate(kind)]
    return [item for _, file in sorted(placed, key=lambda one: one[0]) for item in file]


def _skip_what_needs_a_gpu(items: list[pytest.Item]) -> None:
    if items:
        import torch  # such a test has imported it already

        if not torch.cuda.is_available():
            for item in items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def umask_of_one_test() -> Iterator[None]:
    """Our programs narrow the umask of their process, also when a test calls them in its own. Left
    so, the next PostgreSQL would lie in folders that its account cannot enter."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
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
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
