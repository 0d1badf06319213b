"""The page `/docs`: vendored files, and nothing from other hosts or inline."""

from __future__ import annotations

import gzip
import hashlib
import re
import tomllib
from pathlib import Path

from tunesmith_server import api_docs

from .actors import Server

STATIC = Path(api_docs.__file__).parent / "static"


def test_vendored_files_have_their_recorded_hashes() -> None:
    packages = tomllib.loads((STATIC / "vendor.toml").read_text())
    recorded = {
        name: sha256 for package in packages.values() for name, sha256 in package["sha256"].items()
    }
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in STATIC.iterdir()}
    assert {name: found.get(name) for name in recorded} == recorded
    assert found.keys() - recorded.keys() == {"start.js", "vendor.toml"}


def test_the_page_needs_no_other_host_and_no_inline_code(server: Server) -> None:
    reply = server.client.get("/docs")
    assert reply.status_code == 200
    addresses = re.findall(r'(?:src|href|data-document)="([^"]*)"', reply.text)
    own = [address for address in addresses if address.startswith("/")]
    assert len(own) == 4
    assert set(addresses) - set(own) == {"data:,"}
    assert "style=" not in reply.text
    assert re.findall(r"<script(?![^>]*src=)", reply.text) == []
    assert "unsafe" not in reply.headers["content-security-policy"]
    for address in own:
        assert server.client.get(address).status_code == 200, address
    assert server.client.get("/redoc").status_code == 404


def test_scripts_and_styles_are_compressed_and_never_asked_for_again(server: Server) -> None:
    page = server.client.get("/docs").text
    address = re.findall(r'src="([^"]*bundle.js)"', page)[0]
    content = (STATIC / "swagger-ui-bundle.js").read_bytes()
    plain = server.client.get(address, headers={"accept-encoding": "identity"})
    assert plain.content == content
    packed = server.client.get(address, headers={"accept-encoding": "gzip"})
    assert packed.content == content
    assert int(packed.headers["content-length"]) < len(gzip.compress(content)) + 1000
    assert "immutable" in packed.headers["cache-control"]
    stale = re.sub(r"static/\w+/", "static/0/", address)
    assert server.client.get(stale).status_code == 404
