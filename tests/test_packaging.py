"""What a wheel holds, and that the bare one is the client alone."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = {
    "tunesmith",
    "tunesmith_kernels",
    "tunesmith_schema",
    "tunesmith_server",
    "tunesmith_worker",
}
FOREIGN = ("torch", "fastapi", "sqlalchemy", "celery", "transformers", "tokenizers")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by hatchling itself, without an isolated environment: no download."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_five_packages_and_the_migrations(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == PARTS
    for part in PARTS:
        assert f"{part}/__init__.py" in names
        assert f"{part}/py.typed" in names
    assert "tunesmith_server/migrations/env.py" in names
    assert any(name.startswith("tunesmith_server/migrations/versions/0001") for name in names)


def test_the_portal_is_whole_and_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = [item for item in archive.infolist() if "/portal/" in item.filename]
    assert sum(item.compress_size for item in inside) <= 400_000
    folder = ROOT / "server" / "tunesmith_server"
    files = {
        path.relative_to(folder.parent).as_posix()
        for path in (folder / "portal").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {item.filename for item in inside} == files


def test_the_pinned_triton_is_the_one_that_torch_with_cuda_asks_for() -> None:
    """Any other makes the CUDA image, and an installation from PyPI alone, impossible. The CPU
    build does not say which: `pip install --dry-run` of a new torch from PyPI does."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    assert {pins["torch"]: pins["triton"]} == {"2.13.0": "3.7.1"}


def test_no_top_level_folder_hides_another_package() -> None:
    """Programs put the working directory on sys.path: our kernels/ must not be importable."""
    for folder in ("client", "docker", "kernels", "schema", "server", "worker"):
        assert not (ROOT / folder / "__init__.py").exists()


def test_the_bare_wheel_is_a_client_without_torch_or_server_code(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile"]
    subprocess.run(
        [*install, "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)],
        check=True,
        capture_output=True,
    )
    code = (
        "import json, sys, importlib.util as u, tunesmith\n"
        "tunesmith.Client(api_key='k').close()\n"
        f"print(json.dumps([[n for n in {FOREIGN!r} if u.find_spec(n)], "
        "sorted(m for m in sys.modules if m.startswith('tunesmith_'))]))"
    )
    asked = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    installed, imported = json.loads(asked.stdout)
    assert installed == []
    assert {name.split(".")[0] for name in imported} == {"tunesmith_schema"}
    told = subprocess.run(
        [tmp_path / "venv" / "bin" / "tunesmith", "serve"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert told.returncode == 2
    assert "tunesmith[server]" in told.stderr
