"""The program in the docs that lists content without a row, run as pasted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of

from .actors import Server

PAGE = ROOT / "docs" / "how-to" / "upgrade-and-back-up.md"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_content_without_a_row_is_listed_and_nothing_else(server: Server, tmp_path: Path) -> None:
    (program,) = [block.text for block in blocks_of(PAGE) if "SELECT name FROM blobs" in block.text]
    server.upload(b"recorded")
    blobs = tmp_path / "data" / "blobs"
    assert len(list(blobs.glob("??/*"))) == 1
    for path in ("ab/" + "ab" * 32, "cd/a file of another program"):
        (blobs / path).parent.mkdir(exist_ok=True)
        (blobs / path).write_bytes(b"?")
    (tmp_path / "another-service").symlink_to("data")
    listed = subprocess.run(
        ["bash", "-ec", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert listed.stdout.split() == [f"another-service/blobs/ab/{'ab' * 32}"]
