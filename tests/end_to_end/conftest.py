"""Fixtures: one running service with its own TMPDIR for tests that only use it, and a function that
starts a new service for tests that break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tunesmith

from ..tiny_model import make_tiny_model
from .service import QUICK, Service, write_rows

MakeService = Callable[..., Service]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model(folder / "tiny")
    make_tiny_model(folder / "bare", weights=False)
    return folder


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "train.jsonl")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "temporary").mkdir()
    running = Service(folder / "data", model_dir, TMPDIR=str(folder / "temporary"))
    running.start()
    yield running
    running.close()


@pytest.fixture
def client(service: Service) -> Iterator[tunesmith.Client]:
    with service.client() as opened:
        yield opened


@pytest.fixture
def make_service(tmp_path: Path, model_dir: Path) -> Iterator[MakeService]:
    """Starts a service for one test, with leases of 4 s."""
    made: list[Service] = []

    def make(**env: str) -> Service:
        made.append(Service(tmp_path / f"data-{len(made)}", model_dir, **(QUICK | env)))
        return made[-1].start()

    yield make
    for one in made:
        one.close()
