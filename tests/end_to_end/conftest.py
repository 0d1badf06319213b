"""Fixtures: models, rows and one running service for tests that only use it. Files whose tests
break a service start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tunesmith

from ..tiny_model import make_tiny_model
from .service import Service, write_rows


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
