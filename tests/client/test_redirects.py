"""Redirects: the key is sent to the configured server only."""

from __future__ import annotations

import httpx
import pytest

from tunesmith import APIStatusError

from .fakes import EmptyServer, Script, client_of


def moved(to: str) -> httpx.Response:
    return httpx.Response(307, headers={"location": to})


def test_a_download_follows_to_another_host_without_the_key() -> None:
    script = Script(moved("https://bucket.test/blob?signed"), httpx.Response(200, content=b"rows"))
    assert client_of(script).files.content("file-1") == b"rows"
    assert script.requests[0].headers["authorization"] == "Bearer sk-test"
    assert script.requests[1].url.host == "bucket.test"
    assert "authorization" not in script.requests[1].headers


def test_an_upload_never_follows_a_redirect() -> None:
    script = EmptyServer(moved("http://thief.test/v1/files"))
    with pytest.raises(APIStatusError, match=r"was redirected to http://thief\.test"):
        client_of(script).files.create(file=("a.jsonl", b"secret"))
    assert [request.url.host for request in script.requests] == ["server.test"]
