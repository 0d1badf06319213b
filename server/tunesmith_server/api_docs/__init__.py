"""Page `/docs`: the API's OpenAPI document in Swagger UI.

All files of the page are in this package (`static/vendor.toml` lists their sources). The page needs
no other host, so its Content-Security-Policy can forbid all other hosts.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tunesmith API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}/docs/static/{digest}/swagger-ui.css">
<script src="{root}/docs/static/{digest}/swagger-ui-bundle.js" defer></script>
<script src="{root}/docs/static/{digest}/start.js" type="module"></script>
</head>
<body>
<main id="documentation" data-document="{root}/openapi.json"></main>
<noscript>This page needs JavaScript. The document itself is at {root}/openapi.json.</noscript>
</body>
</html>
"""


def install(app: FastAPI) -> None:
    """Add the routes of the page. The page and the document need no key, because they hold no data
    of users."""
    app.add_route("/docs", _page, include_in_schema=False)
    app.add_route("/docs/static/{digest}/{name}", _file, include_in_schema=False)


async def _page(request: Request) -> Response:
    root = request.scope.get("root_path", "")
    headers = _HEADERS | {"Cache-Control": "no-cache"}
    return HTMLResponse(_PAGE.format(root=root, digest=_digest()), headers=headers)


async def _file(request: Request) -> Response:
    """Send a script or style sheet. The address of a file contains the digest of all files, so the
    content of an address never changes."""
    content = _contents().get(request.path_params["name"])
    if content is None or request.path_params["digest"] != _digest():
        raise HTTPException(404)
    headers = _HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}
    headers["Vary"] = "Accept-Encoding"
    packed = "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        headers["Content-Encoding"] = "gzip"
    media_type = _TYPES[Path(request.path_params["name"]).suffix]
    return Response(content[packed], headers=headers, media_type=media_type)


@functools.cache
def _contents() -> dict[str, tuple[bytes, bytes]]:
    plain = {path.name: path.read_bytes() for path in _STATIC.iterdir() if path.suffix in _TYPES}
    return {name: (content, gzip.compress(content, mtime=0)) for name, content in plain.items()}


@functools.cache
def _digest() -> str:
    digest = hashlib.sha256()
    for _, (plain, _) in sorted(_contents().items()):
        digest.update(hashlib.sha256(plain).digest())
    return digest.hexdigest()[:16]
