"""A trainer refuses a transformers version that our patches have not been compared with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_result
from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.model import versions
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.trainer.run import main

ROOT = Path(__file__).parents[4]
RANGE = "transformers>={}.{},<{}.{}".format(*versions.OLDEST, *versions.FIRST_TOO_NEW)


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(versions, "installed_version", lambda package: version)


@pytest.mark.parametrize("version", ["5.17.0", "5.19.0", "5.20.2", "5.23.0", "5.23.1.dev0"])
def test_a_version_in_the_range_is_accepted(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    install(monkeypatch, version)
    versions.check_versions()


@pytest.mark.parametrize("version", ["4.57.6", "5.2.0", "5.16.1", "5.24.0", "6.0.0", "main"])
def test_another_version_is_named_with_the_range_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    install(monkeypatch, version)
    with pytest.raises(RunError) as caught:
        versions.check_versions()
    failure = caught.value.failure
    assert failure.message == (
        f"The trainer's Python has transformers {version}; Tunesmith needs at least 5.17 and below "
        "5.24."
    )
    assert "TUNESMITH_TRAINER_PYTHON" in str(failure.hint)


def test_a_run_fails_before_it_imports_anything(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "uninstalled")
    run = make_run(QUESTIONS)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert (error.code, error.category) == (
        ErrorCode.VERSIONS_UNSUPPORTED,
        ErrorCategory.INFRASTRUCTURE,
    )
    assert error.message.startswith("The trainer's Python has no transformers;")
    assert not (run / "plan.json").exists()


def test_the_package_asks_for_the_same_range() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert RANGE in extras["optional-dependencies"]["trainer"]


@pytest.mark.parametrize("file", sorted(path.name for path in ROOT.glob("constraints*.txt")))
def test_every_set_of_versions_is_in_the_range_and_in_the_docs(
    monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (version,) = re.findall(r"^transformers==(\S+)$", (ROOT / file).read_text(), re.MULTILINE)
    install(monkeypatch, version)
    versions.check_versions()
    page = (ROOT / "docs/how-to/vllm.md").read_text()
    assert f"| `{file}` | {version.rpartition('.')[0]} |" in page
