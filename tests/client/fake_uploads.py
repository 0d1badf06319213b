"""In-memory fake of /v1/uploads with faults on request. It knows only the wire format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import httpx

from .fakes import page, refusal

Json = dict[str, Any]  # Any: JSON
CONTENT = bytes(range(256)) * 5 + b"end"
PARTS = 13
"""Number of parts of `CONTENT`. The fixtures set 100 bytes per part."""


class FakeUploads:
    """`before(name, number)` may return another answer. `listed` holds the files on the server."""

    def __init__(self) -> None:
        self.uploads: dict[str, Json] = {}
        self.contents: dict[str, bytes] = {}
        self.listed: list[Json] = []
        self.asked: list[str] = []
        self.md5s: list[str] = []
        self.before: Callable[[str, int], httpx.Response | None] = lambda name, number: None
        self.damage: Callable[[bytes], bytes] = lambda content: content

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if (request.method, request.url.path) == ("GET", "/v1/files"):
            return httpx.Response(200, json=page(*self.listed))
        _, _, _, *rest = request.url.path.split("/")
        name = rest[1] if len(rest) == 2 else {"GET": "retrieve"}.get(request.method, "create")
        body = request.read()
        self.asked.append(name)
        if answer := self.before(name, self.asked.count(name)):
            return answer
        if name == "create":
            return httpx.Response(200, json=self._create(json.loads(body)))
        if rest[0] not in self.uploads:
            return refusal(404, code="not_found")
        upload = self.uploads[rest[0]]
        if name == "retrieve":
            return httpx.Response(200, json=upload)
        if upload["status"] != "pending":
            return refusal(400, code="upload_closed")
        if name == "parts":
            part = self._part(upload, _field(request.headers["content-type"], body))
            return httpx.Response(200, json=part)
        return httpx.Response(200, json=self._complete(upload, json.loads(body)))

    def break_at(self, number: int, name: str = "parts") -> None:
        """Break the network at this request and at all later ones."""

        def refuse(asked: str, count: int) -> None:
            if asked == name and count >= number:
                raise httpx.ConnectError("gone")

        self.before = refuse

    def mend(self) -> None:
        self.before = lambda name, number: None
        self.asked.clear()

    def _create(self, body: Json) -> Json:
        upload = {**body, "id": f"upload-{len(self.uploads) + 1}", "object": "upload"}
        upload |= {"created_at": 1, "expires_at": 99_999_999_999, "status": "pending", "parts": []}
        self.uploads[upload["id"]] = upload
        return upload

    def _part(self, upload: Json, content: bytes) -> Json:
        content = self.damage(content)
        part = {"id": f"part-{len(self.contents) + 1}", "upload_id": upload["id"], "created_at": 1}
        part |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        self.contents[part["id"]] = content
        upload["parts"].append(part)
        return part

    def _complete(self, upload: Json, body: Json) -> Json:
        whole = b"".join(self.contents[part_id] for part_id in body["part_ids"])
        self.md5s.append(body["md5"])
        file = {"id": "file-1", "bytes": len(whole), "created_at": 1, "purpose": upload["purpose"]}
        file |= {"filename": upload["filename"], "sha256": hashlib.sha256(whole).hexdigest()}
        upload |= {"status": "completed", "file": file}
        return upload


def memories(tmp_path: Path) -> list[Path]:
    """Return the records of interrupted uploads in the test's cache."""
    return list((tmp_path / "cache").rglob("*.json"))


def _field(content_type: str, body: bytes) -> bytes:
    """Return the only field of a multipart body."""
    whole = message_from_bytes(b"content-type: " + content_type.encode() + b"\r\n\r\n" + body)
    fields = whole.get_payload()
    assert isinstance(fields, list)
    [field] = fields
    assert isinstance(field, Message)
    assert field.get_param("name", header="content-disposition") == "data"
    content = field.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content
