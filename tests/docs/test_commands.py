"""Every `sh` and `python` block of README, tutorial and how-to pages runs as pasted.

One service with tiny models serves all pages. The blocks of a page run in one shell, in order, in a
folder that looks like a clone after `make demo`. A block that cannot run here says why in a comment
before it (`<!-- not run: REASON -->`); the test then checks that its commands exist.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_group

from tunesmith.cli import app
from tunesmith_worker.demo.task import invented_task

from ..end_to_end.service import QUICK, Service
from ..tiny_model import make_tiny_model
from .blocks import PAGES, ROOT, Block, blocks_of, commands_of

MODELS = ("demo-base", "my-model")
ADDRESS = "http://127.0.0.1:8000"
"""Address of the service in the docs."""


def to_run(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.reason is None]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the demo's data files and tiny models in place of the demo's."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "demo-output").mkdir()
    invented_task(folder / "demo-output")
    for name in MODELS:
        make_tiny_model(folder / "demo-output" / "models" / name)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text("")
    return folder


@pytest.fixture(scope="module")
def service(clone: Path) -> Iterator[Service]:
    models = clone / "demo-output" / "models"
    env = QUICK | {"TUNESMITH_LEASE_SECONDS": "60", "TUNESMITH_WARM_TRAINER": "false"}
    running = Service(clone / ".tunesmith", models, **env)
    running.start()
    yield running
    running.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)], ids=lambda p: p.stem)
def test_every_block_of_a_page_runs_as_pasted(
    page: Path, clone: Path, service: Service, tmp_path: Path
) -> None:
    for entry in clone.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    script = "\n".join(map(step, to_run(page)))
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script.replace(ADDRESS, service.url[:-3])],
        cwd=tmp_path,
        env=environment(service),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert done.returncode == 0, f"{page.name}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def step(block: Block) -> str:
    """Announce the block, then run it; a Python block is a program of its own."""
    announce = f"echo '== line {block.line}' >&2\n"
    if block.language == "sh":
        return announce + block.text
    return f"{announce}python - <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK"


def environment(service: Service) -> dict[str, str]:
    """Environment of a reader's second terminal."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("TUNESMITH_")}
    programs = str(Path(sys.executable).parent)
    return env | {
        "PATH": f"{programs}:{env['PATH']}",
        "TUNESMITH_BASE_URL": service.url,
        "TUNESMITH_API_KEY": service.api_key,
        "XDG_CACHE_HOME": str(service.data_dir),
    }


def test_every_page_has_blocks() -> None:
    assert [page.name for page in PAGES if not blocks_of(page)] == []


def test_every_command_in_the_docs_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    commands = {
        command
        for page in pages
        if "decisions" not in page.parts and "log" not in page.parts
        for block in blocks_of(page)
        for command in commands_of(block.text)
    }
    assert ("jobs", "create") in commands
    tunesmith = get_group(app)
    assert [words for words in sorted(commands) if not exists(tunesmith, words)] == []


def exists(group: TyperGroup, words: tuple[str, ...]) -> bool:
    """Look a command up in the command line; server and worker parse the words after theirs."""
    command = group.commands.get(words[0])
    if isinstance(command, TyperGroup):
        return len(words) == 1 or words[1] in command.commands
    return command is not None
