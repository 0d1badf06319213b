"""What a machine lacks that has torch, triton and transformers, but nothing of ours."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.children import ROOT

SERVER = (
    *("alembic", "boto3", "celery", "fastapi", "moto", "obstore", "psycopg", "pydantic_settings"),
    *("redis", "sqlalchemy", "tunesmith_server", "uvicorn"),
)
NEWER = {"activation_checkpointing", "activation_checkpointing_kwargs"}
"""Options of transformers 5.23's TrainingArguments that transformers 5.17 does not have."""


def test_tests_that_need_a_gpu_need_no_package_of_the_server(tmp_path: Path) -> None:
    for name in SERVER:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ImportError('{name} is not here')\n")
    sources = [str(tmp_path), str(ROOT), *(str(ROOT / name) for name in ("kernels", "schema"))]
    run = subprocess.run(
        [sys.executable, "-P", "-c", "import tests.conftest, tests.kernels.conftest"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sources)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_no_call_names_an_option_that_the_oldest_transformers_does_not_have() -> None:
    files = [
        path
        for folder in ("benchmarks", "worker", "kernels")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 100
    found = [
        f"{path.relative_to(ROOT)}:{node.value.lineno} {node.arg}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg in NEWER
    ]
    assert found == []
