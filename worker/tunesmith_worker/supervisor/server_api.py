"""Client for the server's /internal routes."""

from __future__ import annotations

import copy
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tunesmith_schema import (
    Claim,
    ClaimRequest,
    FileReading,
    ReadingClaim,
    ReadingEnd,
    ReadingLease,
    ReadingResult,
    Report,
    ReportReply,
    StoredFile,
    WorkerEnrollment,
    WorkerHello,
    WorkerWelcome,
)
from tunesmith_schema.evaluations import (
    EvaluationClaim,
    EvaluationLease,
    EvaluationOutcome,
    EvaluationRenewal,
)
from tunesmith_worker.rundir.paths import file_hash

from .identity import WorkerIdentity
from .settings import WorkerSettings

_CHUNK = 1024 * 1024
_CHECK_STORED_BYTES = 64 * 1024
"""Minimum bytes of a file for which the worker first asks if the server already has the content."""


class ServerUnreachable(Exception):
    """Raised if the server does not answer, or refuses the request temporarily.

    A retry may help.
    """


class ServerFault(ServerUnreachable):
    """Raised for a 5xx answer or damaged content.

    A request that caused a ServerFault should be retried only a few times.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class FencedOut(Exception):
    """Raised if this worker lost the job, because the server has given the job to another
    worker."""


class ServerRefused(Exception):
    """Raised if the server rejects a request.

    Causes are a bug, or different versions of server and worker."""


class ContentMissing(ServerRefused):
    """Raised if the store has lost files that a final report names.

    The worker must upload the lost files again.
    """


class NotEnrolled(Exception):
    """Raised inside this module if the server does not have the worker's credential."""


class ServerApi:
    identity: WorkerIdentity
    """Worker that sends the requests."""

    def __init__(
        self,
        settings: WorkerSettings,
        identity: WorkerIdentity,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.identity = identity
        self._token = settings.worker_token.get_secret_value()
        self._http = httpx.Client(
            base_url=f"{settings.server_url}/internal",
            timeout=httpx.Timeout(10.0, read=30.0),
            transport=transport,
            verify=settings.server_trust(),
            trust_env=False,  # a proxy from the environment must not see credentials
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def acting_as(self, identity: WorkerIdentity) -> Self:
        """Return a client that sends requests with the identity of a dead worker.

        The new client uses the connections of this client.
        """
        other = copy.copy(self)
        other.identity = identity
        return other

    def enroll(self) -> None:
        """Register this worker's credential with the server. Repeated calls are safe."""
        body = WorkerEnrollment(
            worker_id=self.identity.worker_id,
            queue=self.identity.queue,
            secret_sha256=self.identity.secret_sha256,
        )
        try:
            reply = self._http.post(
                "/workers/enroll",
                json=body.model_dump(mode="json"),
                headers={"authorization": f"Bearer {self._token}"},
            )
        except httpx.TransportError as error:
            raise ServerUnreachable(f"POST /workers/enroll: {error!r}") from error
        _check(reply)

    def hello(self, body: WorkerHello) -> WorkerWelcome:
        reply = self._send("POST", "/workers/hello", json=body.model_dump(mode="json"))
        return WorkerWelcome.model_validate_json(reply.content)

    def goodbye(self, worker_id: str) -> None:
        self._send("DELETE", f"/workers/{worker_id}")

    def claim(self, worker_id: str) -> Claim | None:
        body = ClaimRequest(worker_id=worker_id)
        reply = self._send("POST", "/jobs/claim", json=body.model_dump(mode="json"))
        return None if reply.status_code == 204 else Claim.model_validate_json(reply.content)

    def report(self, job_id: str, report: Report, timeout: float) -> ReportReply:
        """Send a report. `timeout`: seconds to wait for an answer, shorter than the lease."""
        body = report.model_dump(mode="json")
        reply = self._send("POST", f"/jobs/{job_id}/report", json=body, timeout=timeout)
        return ReportReply.model_validate_json(reply.content)

    def put_blob(self, job_id: str, fence: int, path: Path) -> StoredFile:
        """Store a file under its hash, unless the server has it.

        The server verifies and returns the hash.
        """
        sha256 = file_hash(path)
        stored = StoredFile(name=path.name, bytes=path.stat().st_size, sha256=sha256)
        if stored.bytes >= _CHECK_STORED_BYTES and self._is_stored(job_id, fence, sha256):
            return stored
        try:
            self._put(job_id, fence, path, stored)
        except NotEnrolled:
            self.enroll()
            self._put(job_id, fence, path, stored)
        return stored

    def _put(self, job_id: str, fence: int, path: Path, stored: StoredFile) -> None:
        sha256 = stored.sha256
        with path.open("rb") as content:  # a second try must start at the first byte
            reply = self._send_once(
                "PUT",
                f"/jobs/{job_id}/blobs/{sha256}",
                params={"fence": fence},
                content=iter(lambda: content.read(_CHUNK), b""),
                timeout=httpx.Timeout(10.0, read=600.0, write=600.0),
            )
        verified = StoredFile.model_validate_json(reply.content)
        if (verified.sha256, verified.bytes) != (sha256, stored.bytes):
            raise ServerFault(
                f"the server stored other content for {path.name}: sha256 {verified.sha256}, "
                f"{verified.bytes} bytes, not {sha256}, {stored.bytes} bytes"
            )

    def _is_stored(self, job_id: str, fence: int, sha256: str) -> bool:
        reply = self._send("GET", f"/jobs/{job_id}/blobs/{sha256}", params={"fence": fence})
        return bool(reply.json()["stored"])

    def fetch_file(self, file_id: str, sha256: str, target: Path) -> None:
        """Download an uploaded file and verify its hash."""
        self._fetch(f"/files/{file_id}/content", {}, sha256, target)

    def fetch_base_file(self, job_id: str, fence: int, file: StoredFile, target: Path) -> None:
        """Download one file of the tuned model that a job starts from, and verify its hash."""
        self._fetch(f"/jobs/{job_id}/base/{file.name}", {"fence": fence}, file.sha256, target)

    def fetch_resume_file(self, job_id: str, fence: int, file: StoredFile, target: Path) -> None:
        """Download one file of a resume point and verify its hash."""
        self._fetch(f"/jobs/{job_id}/resume/{file.sha256}", {"fence": fence}, file.sha256, target)

    def claim_reading(self, file_id: str, worker_id: str) -> FileReading:
        """Claim an uploaded file for validation."""
        return self._reading(file_id, "claim", ReadingClaim(worker_id=worker_id))

    def renew_reading(self, file_id: str, lease: ReadingLease) -> FileReading:
        return self._reading(file_id, "renew", lease)

    def give_back_reading(self, file_id: str, end: ReadingEnd) -> None:
        self._send("POST", f"/files/{file_id}/reading/give-back", json=end.model_dump(mode="json"))

    def send_reading(self, file_id: str, result: ReadingResult) -> None:
        body = result.model_dump(mode="json")
        self._send("POST", f"/files/{file_id}/reading/result", json=body)

    def claim_evaluation(self, worker_id: str) -> EvaluationClaim | None:
        body = ClaimRequest(worker_id=worker_id)
        reply = self._send("POST", "/evaluations/claim", json=body.model_dump(mode="json"))
        if reply.status_code == 204:
            return None
        return EvaluationClaim.model_validate_json(reply.content)

    def renew_evaluation(self, evaluation_id: str, lease: EvaluationLease) -> EvaluationRenewal:
        url = f"/evaluations/{evaluation_id}/renew"
        reply = self._send("POST", url, json=lease.model_dump(mode="json"))
        return EvaluationRenewal.model_validate_json(reply.content)

    def end_evaluation(self, evaluation_id: str, outcome: EvaluationOutcome) -> None:
        url = f"/evaluations/{evaluation_id}/outcome"
        self._send("POST", url, json=outcome.model_dump(mode="json"))

    def fetch_evaluated_file(self, claim: EvaluationClaim, file: StoredFile, target: Path) -> None:
        """Download one file of an evaluated model, and verify its hash."""
        url = f"/evaluations/{claim.evaluation_id}/files/{file.sha256}"
        self._fetch(url, {"fence": claim.fence}, file.sha256, target)

    def _reading(self, file_id: str, verb: str, body: ReadingClaim | ReadingLease) -> FileReading:
        url = f"/files/{file_id}/reading/{verb}"
        reply = self._send("POST", url, json=body.model_dump(mode="json"))
        return FileReading.model_validate_json(reply.content)

    def _fetch(self, url: str, params: dict[str, int], sha256: str, target: Path) -> None:
        try:
            self._download(url, params, sha256, target)
        except NotEnrolled:
            self.enroll()
            self._download(url, params, sha256, target)

    def _download(self, url: str, params: dict[str, int], sha256: str, target: Path) -> None:
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        digest = hashlib.sha256()
        try:
            with (
                self._http.stream("GET", url, params=params, headers=self._headers) as reply,
                part.open("wb") as file,
            ):
                if reply.status_code >= 400:
                    reply.read()
                    _check(reply)
                for chunk in reply.iter_bytes(_CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except httpx.TransportError as error:
            raise ServerUnreachable(f"GET {url}: {error!r}") from error
        if digest.hexdigest() != sha256:
            raise ServerFault(f"GET {url}: the content does not match its sha256")
        part.replace(target)

    def _send(self, method: str, url: str, **options: Any) -> httpx.Response:  # Any: httpx's own
        try:
            return self._send_once(method, url, **options)
        except NotEnrolled:  # the first request, or the server's database was restored
            self.enroll()
            return self._send_once(method, url, **options)

    def _send_once(self, method: str, url: str, **options: Any) -> httpx.Response:  # Any: httpx's
        try:
            reply = self._http.request(method, url, headers=self._headers, **options)
        except httpx.TransportError as error:
            raise ServerUnreachable(f"{method} {url}: {error!r}") from error
        _check(reply)
        return reply

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": self.identity.credential}


def _check(reply: httpx.Response) -> None:
    if reply.status_code < 400:
        return
    try:
        error = reply.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = {"code": None, "message": reply.text[:200]}
    message = f"{reply.request.method} {reply.request.url.path}: {error['message']}"
    if error["code"] == "worker_not_enrolled":
        raise NotEnrolled(message)
    if error["code"] == "fenced_out" or (
        reply.status_code == 404
        and any(part in message for part in ("/jobs/", "/reading/", "/renew", "/outcome"))
    ):
        raise FencedOut(message)
    if error["code"] == "content_missing":
        raise ContentMissing(message)
    if reply.status_code in (408, 429, 503, 507):  # the server is busy or its disk is full
        raise ServerUnreachable(message)
    if reply.status_code >= 500 or error["code"] == "upload_mismatch":  # damaged on its way
        raise ServerFault(message, error["code"])
    raise ServerRefused(message)
