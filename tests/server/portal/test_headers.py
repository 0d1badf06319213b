"""Security headers of every answer: pages, parts, static files, downloads, errors, streams."""

from __future__ import annotations

import re

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from tunesmith_server.portal import assets, failures, routing, security

from ..actors import Server
from .browser import SAME_SITE, signed_in
from .registered import registered

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
ELSEWHERE = (
    "/", "/portal/", "/portal/nothing", "/portal/static/x/app.css", "/docs", "/docs/",
    "/docs/static/x/y.js", "/openapi.json", "/favicon.ico", "//portal/jobs",
)  # fmt: skip
CSP = "content-security-policy"


def is_protected(reply: Response) -> bool:
    policy = reply.headers[CSP]
    if reply.request.url.path.startswith("/docs"):  # with a policy of its own
        same = "default-src 'none'" in policy and "unsafe" not in policy
    else:
        same = policy == security.HEADERS[CSP]
    names = ("x-content-type-options", "referrer-policy", "cross-origin-opener-policy")
    return same and all(reply.headers[name] == security.HEADERS[name] for name in names)


def browser_of(server: Server) -> TestClient:
    """Return a signed-in client to which failures of the server are answers."""
    browser = signed_in(server)
    client = TestClient(server.app, raise_server_exceptions=False, headers=SAME_SITE)
    client.cookies.update(browser._client.cookies)
    return client


def test_every_answer_has_the_security_headers(server: Server) -> None:
    client, job_id = browser_of(server), server.create_job(server.good_file())
    paths = {page.path.replace("{job_id}", job_id) for page in registered()}
    paths -= {"/portal/sign-out"}
    paths |= {assets.url(name) for name in assets.names()} | set(ELSEWHERE)
    for path in sorted(re.sub(r"\{[^}]*\}", "x", path) for path in paths):
        for method in METHODS:
            reply = client.request(method, path, follow_redirects=False)
            assert is_protected(reply), (method, path, reply.status_code)
            if reply.headers.get("content-type", "").startswith("text/html"):
                assert reply.headers["cache-control"] in ("no-store", "no-cache"), (method, path)
    assert is_protected(client.head("/portal/live?watch=list"))
    client.cookies.clear()
    assert is_protected(client.get("/portal/live"))


def test_failures_have_the_security_headers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browser_of(server)
    large = client.post("/portal/sign-in", content=b"key=" + b"a" * 20_000_000)
    assert (large.status_code, is_protected(large)) == (413, True)

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(routing, "_visit", fail)
    failed = client.get("/portal/jobs")
    assert (failed.status_code, is_protected(failed)) == (500, True)
    monkeypatch.setattr(failures, "respond", fail)
    failed = client.get("/portal/jobs")
    assert (failed.status_code, is_protected(failed)) == (500, True)


def test_the_api_sends_none_of_them(server: Server) -> None:
    assert CSP not in server.user.get("/v1/models").headers
