"""Static files, under a path that contains the digest of the whole folder. A changed file gets a
new path, so browsers may keep files for a year. JavaScript modules import each other by relative
paths, so a page never mixes two versions."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import NotFound

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Media type of each suffix of a served file."""


@dataclass(frozen=True, kw_only=True)
class _Asset:
    content: bytes
    compressed: bytes | None
    """Content compressed by gzip; None for fonts, which are compressed already."""
    type: str


@cache
def _assets() -> dict[str, _Asset]:
    """Read all files (250 kB) once per process."""
    found = {}
    for file in sorted(_FOLDER.rglob("*")):
        if file.suffix not in _TYPES:
            continue
        content = file.read_bytes()
        compressed = None if file.suffix == ".woff2" else gzip.compress(content, 9, mtime=0)
        name = file.relative_to(_FOLDER).as_posix()
        found[name] = _Asset(content=content, compressed=compressed, type=_TYPES[file.suffix])
    return found


@cache
def digest() -> str:
    """Return the version of the folder: 12 hexadecimal digits."""
    whole = hashlib.sha256()
    for name, asset in _assets().items():
        whole.update(f"{name}\0{len(asset.content)}\0".encode() + asset.content)
    return whole.hexdigest()[:12]


def url(name: str) -> str:
    """Return the path of a static file. Raises KeyError for a file that does not exist."""
    if name not in _assets():
        raise KeyError(f"no static file {name!r}")
    return f"/portal/static/{digest()}/{name}"


def names() -> list[str]:
    return list(_assets())


async def _serve(request: Request) -> Response:
    asset = _assets().get(request.path_params["name"])
    if asset is None or request.path_params["digest"] != digest():
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no static file {request.url.path!r}",
            hint="the portal was updated: load the page again",
        )
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
        "vary": "accept-encoding",
    }
    content = asset.content
    if asset.compressed and accepts_gzip(request):
        content, headers["content-encoding"] = asset.compressed, "gzip"
    return Response(content, media_type=asset.type, headers=headers)


def accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


route = Route("/portal/static/{digest}/{name:path}", _serve)
