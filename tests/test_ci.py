"""The script of CI with a Makefile of its own: what runs in the background fails it too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = (
    *("browser", "test", "test-long-tail", "test-timing"),
    *("check", ".venv-vllm/.ready", "test-vllm"),
)
MAKEFILE = """
test-again:
\t@echo "$@ said this"
\t@[ "$(AGAIN)" = passes ] || exit 3

{targets}:
\t@echo "$@ said this"
\t@[ "$@" != "$(FAILS)" ] || exit 3
"""


def _run(folder: Path, fails: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / "Makefile").write_text(MAKEFILE.format(targets=" ".join(TARGETS)))
    return subprocess.run(
        [folder / ".ci/run"],
        env={"PATH": os.environ["PATH"], "FAILS": fails, "TMPDIR": str(folder)} | variables,
        capture_output=True,
        text=True,
    )


def test_every_target_is_made_and_its_output_printed(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(
        line for line in done.stdout.splitlines() if line.endswith("said this")
    ) == sorted(f"{target} said this" for target in TARGETS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ci", "Makefile"]


@pytest.mark.parametrize(("seconds", "left_out"), [("4000", False), ("4200", True)])
def test_a_slow_machine_leaves_out_vllm_and_says_so(
    tmp_path: Path, seconds: str, left_out: bool
) -> None:
    done = _run(tmp_path, SECONDS=seconds)  # bash counts from this value
    assert done.returncode == 0, done.stderr
    assert ("test-vllm said this" in done.stdout) is not left_out
    assert (
        "make test-vllm was left out: the other tests took 70 minutes" in done.stdout
    ) is left_out


def test_the_output_of_what_is_stopped_is_printed(tmp_path: Path) -> None:
    printed = _run(tmp_path, "test").stdout
    assert "make check, stopped:" in printed
    assert "make .venv-vllm/.ready, stopped:" in printed


@pytest.mark.parametrize("target", TARGETS)
def test_only_failed_tests_have_a_second_run(tmp_path: Path, target: str) -> None:
    done = _run(tmp_path, target, AGAIN="passes")
    repeated = target in ("test", "test-long-tail")
    assert (done.returncode == 0) is repeated
    assert ("test-again said this" in done.stdout) is repeated


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_fails_fails_ci_and_says_why(tmp_path: Path, target: str) -> None:
    done = _run(tmp_path, target)
    assert done.returncode != 0
    assert f"{target} said this" in done.stdout
    assert "Error 3" in done.stdout + done.stderr
    assert ("test-vllm said this" in done.stdout) == (target == "test-vllm")
