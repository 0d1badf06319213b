"""A source tree that is not installed works, and says so where versions are recorded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.uninstalled import hide_metadata
from tunesmith_schema.versions import UNINSTALLED, installed_version

ROOT = Path(__file__).parents[2]
PROGRAM = """
import tunesmith
from tunesmith_worker.trainer.checkpoints.identity import made_with
print(tunesmith.__version__, made_with()["tunesmith"])
"""


def test_an_installed_package_has_its_version() -> None:
    assert installed_version("pydantic") == version("pydantic")
    assert installed_version("no-such-package-of-ours") == UNINSTALLED


def test_a_tree_that_is_not_installed_names_no_version(tmp_path: Path) -> None:
    hide_metadata(tmp_path)
    sources = [str(ROOT / name) for name in ("client", "schema", "worker", "kernels")]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sources])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == f"{UNINSTALLED} {UNINSTALLED}\n", run.stderr


def test_no_module_of_ours_requires_our_own_metadata() -> None:
    asks = re.compile(r"""(?<!installed_)version\(['"]tunesmith['"]\)""")
    found = [
        str(path.relative_to(ROOT))
        for folder in ("benchmarks", "client", "kernels", "schema", "server", "worker")
        for path in (ROOT / folder).rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
