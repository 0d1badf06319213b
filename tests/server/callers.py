"""Clients for the server tests: users, and training workers that claim jobs and report on them."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

VERDICT = {
    "kind": "lora", "step": 3, "base_model": "tiny-llama", "base_fingerprint": None,
    "dtype": "fp32", "quantization": "none", "vocabulary": 9, "arithmetic": "fp32",
    "probe": [[1, 2]], "max_difference": 1e-6, "tolerance": 1e-3, "rule": "a rule",
    "made_with": {"torch": "2.9"}, "files": {},
}  # fmt: skip
"""Content of a verification.json."""


class Caller:
    """HTTP client with one bearer token."""

    def __init__(self, client: TestClient, token: str | None) -> None:
        self._client = client
        self.headers = {"authorization": f"Bearer {token}"} if token is not None else {}

    def send(self, method: str, path: str, **options: Any) -> Response:  # Any: httpx's options
        headers = {**self.headers, **(options.pop("headers", None) or {})}
        return self._client.request(method, path, headers=headers, **options)

    def get(self, path: str, **options: Any) -> Response:
        return self.send("GET", path, **options)

    def post(self, path: str, **options: Any) -> Response:
        return self.send("POST", path, **options)

    def put(self, path: str, **options: Any) -> Response:
        return self.send("PUT", path, **options)

    def delete(self, path: str, **options: Any) -> Response:
        return self.send("DELETE", path, **options)

    def json(self, path: str, **options: Any) -> Any:  # Any: JSON
        reply = self.get(path, **options)
        assert reply.status_code == 200, reply.text
        return reply.json()


class TrainWorker(Caller):
    """Training worker that claims jobs and reports on them.

    A request that names another worker (`worker_id`) is sent by that worker; requests that only a
    light worker may send, by a light worker. A worker enrolls before its first request."""

    name = "worker-1"

    models = ("tiny-llama",)
    """Base models on the worker's host."""

    def __init__(self, client: TestClient, token: str) -> None:
        super().__init__(client, token)
        self._enrolled: dict[tuple[str, str], str] = {}
        self._holders: dict[tuple[str, int | None], str] = {}

    def send(self, method: str, path: str, **options: Any) -> Response:
        if not path.startswith("/internal/") or path == "/internal/workers/enroll":
            return super().send(method, path, **options)
        headers = {**self._headers_for(path, options.get("json")), **(options.get("headers") or {})}
        reply = super().send(method, path, **{**options, "headers": headers})
        if path == "/internal/jobs/claim" and reply.status_code == 200:
            claim, holder = reply.json(), options["json"]["worker_id"]
            for attempt in (claim["attempt"], None):
                self._holders[claim["job_id"], attempt] = holder
        return reply

    def _headers_for(self, path: str, body: Any) -> dict[str, str]:
        named = body.get("worker_id") if isinstance(body, dict) else None
        parts = path.split("/")
        queue = body.get("queue", "train") if isinstance(body, dict) else "train"
        if parts[2] == "workers" and parts[3] != "hello":
            named = parts[3]
        elif parts[2] == "jobs" and parts[3] != "claim":
            attempt = body.get("attempt") if isinstance(body, dict) else None
            named = self._holders.get((parts[3], attempt), named)
        elif parts[2] == "files":
            queue, named = "light", named or "light-1"
        return self.credential(named or self.name, queue)

    def credential(self, name: str, queue: str = "train") -> dict[str, str]:
        """Enroll a worker if necessary; return the headers of its requests."""
        key = (name, "light" if queue == "light" else "train")
        if parts := [known for known in self._enrolled if known[0] == name]:
            key = parts[0]
        if key not in self._enrolled:
            self._enrolled[key] = secret = secrets.token_hex(16)
            body = {
                "worker_id": name,
                "queue": key[1],
                "secret_sha256": hashlib.sha256(secret.encode()).hexdigest(),
            }
            reply = super().send("POST", "/internal/workers/enroll", json=body)
            assert reply.status_code == 200, reply.text
        return {"authorization": f"Bearer {name}:{self._enrolled[key]}"}

    def hello(self, name: str = "", **fields: Any) -> Response:
        body = {
            "worker_id": name or self.name,
            "queue": "train",
            "host": "here",
            "device": "cpu",
            "version": "0",
            "models": self.models,
        }
        return self.post("/internal/workers/hello", json=body | fields)

    def claim_reply(self, name: str = "") -> Response:
        """Report as a running worker and ask for a job."""
        assert self.hello(name).status_code == 200
        return self.post("/internal/jobs/claim", json={"worker_id": name or self.name})

    def claim(self, name: str = "") -> dict[str, Any]:
        reply = self.claim_reply(name)
        assert reply.status_code == 200, reply.text or "nothing to claim"
        claim: dict[str, Any] = reply.json()
        return claim

    def report_reply(self, claim: dict[str, Any], **report: Any) -> Response:
        holder = self._holders.get((claim["job_id"], claim["attempt"]), self.name)
        body = {"worker_id": holder, "attempt": claim["attempt"], "fence": claim["fence"]}
        return self.post(f"/internal/jobs/{claim['job_id']}/report", json=body | report)

    def report(self, claim: dict[str, Any], **report: Any) -> dict[str, Any]:
        reply = self.report_reply(claim, **report)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def claim_reading(self, file_id: str, name: str = "light-1") -> dict[str, Any]:
        """Ask for the reading of a file; `reading` in the lease is 0 if there is none."""
        body = {"worker_id": name}
        reply = self.post(f"/internal/files/{file_id}/reading/claim", json=body)
        assert reply.status_code == 200, reply.text
        return {"worker_id": name, "reading": reply.json()["reading"]}

    def read(self, verb: str, file_id: str, lease: dict[str, Any], **fields: Any) -> Response:
        return self.post(f"/internal/files/{file_id}/reading/{verb}", json=lease | fields)

    def put_blob(self, claim: dict[str, Any], content: bytes, sha256: str = "") -> Response:
        sha256 = sha256 or hashlib.sha256(content).hexdigest()
        return self.put(
            f"/internal/jobs/{claim['job_id']}/blobs/{sha256}",
            params={"fence": claim["fence"]},
            content=content,
        )

    def store(self, claim: dict[str, Any], files: dict[str, bytes]) -> list[dict[str, Any]]:
        stored = []
        for name, content in files.items():
            reply = self.put_blob(claim, content)
            assert reply.status_code == 200, reply.text
            stored.append({**reply.json(), "name": name})
        return stored

    def succeed(
        self, claim: dict[str, Any], kind: str = "lora", verification: bytes | None = None
    ) -> dict[str, bytes]:
        """Store a small adapter and report success. Return the adapter's files."""
        files = {
            "adapter_config.json": b'{"peft_type": "LORA"}',
            "adapter_model.safetensors": bytes(range(256)) * 5,
            "empty.txt": b"",
        }
        if verification is not None:
            files["verification.json"] = verification
        outcome = {"state": "succeeded", "kind": kind, "step": 3, "trained_tokens": 30}
        self.report(claim, outcome={**outcome, "files": self.store(claim, files)})
        return files


def event(source_seq: int, message: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"source_seq": source_seq, "created_at": 1_700_000_000.5, "message": message, **fields}


def metrics(source_seq: int, step: int, **values: float | None) -> dict[str, Any]:
    return event(source_seq, f"step {step}", kind="metrics", data={"step": step, **values})
