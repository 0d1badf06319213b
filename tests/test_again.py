"""A second run of failed tests: which tests may have one, and that it decides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import again

ROOT = Path(__file__).parents[1]
TESTS = """
from pathlib import Path

def test_first_fails(): # passes in the second run
    assert Path("seen").exists() or Path("seen").touch()

def test_fails(): assert {always}

def test_passes(): pass
"""


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        ([], "no test failed"),
        ([f"tests/a.py::test_{n}" for n in range(4)], "4 tests failed, more than 3"),
        (["tests/a.py::test_a", "tests/chaos/test_chaos.py::test_b[x]"], "test_chaos.py::test_b"),
        (["tests/end_to_end/test_durability.py::test_c"], "test_durability.py::test_c"),
        (["tests/a.py"], "could not read tests/a.py"),
    ],
)
def test_some_failures_are_final(failed: list[str], reason: str) -> None:
    said = again.refusal(failed, 1)
    assert said is not None
    assert reason in said


@pytest.mark.parametrize("status", [-1, 0, 2, 3, 4, 5])
def test_a_run_that_was_interrupted_has_no_second_run(status: int) -> None:
    assert again.refusal(["tests/a.py::test_a"], 1) is None
    assert "did not run all tests" in str(again.refusal(["tests/a.py::test_a"], status))


def test_the_named_folders_exist() -> None:
    assert [folder for folder in again.NEVER if not (ROOT / folder).is_dir()] == []


@pytest.mark.parametrize("always", [True, False])
def test_the_second_run_decides(tmp_path: Path, always: bool) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.format(always=always))
    first = _run(tmp_path, "pytest", "-q", "-p", "tests.again")
    assert first.returncode == 1
    second = _run(tmp_path, "tests.again")
    assert (second.returncode == 0) is always
    verdict = "passed alone" if always else "failed again alone"
    assert f"first run; {verdict}:\n  test_it.py::test_first_fails" in second.stdout
    assert "test_passes" not in second.stdout
    if always:
        assert json.loads((tmp_path / again.FAILED).read_text()) == {}


def _run(folder: Path, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
