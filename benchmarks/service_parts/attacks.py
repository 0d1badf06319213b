"""Attacks that `benchmarks.attacks` runs: functions that send heavy requests to a running
service."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from .connections import Target
from .installation import BASE_MODEL, Installation
from .load import Load, run
from .process_use import cpu_seconds

MIB = 2**20
HEADERS_BYTES = 100 * MIB
HALF_OPEN = 1100
HOLD_SECONDS = 8.0
LARGE_JOBS, LISTS = 60, 8
COMPLETES, UPLOAD_PARTS = 60, 8
SLOW_READERS = 200


@dataclass(frozen=True, kw_only=True)
class Attack:
    service: Installation
    file_id: str
    claim: dict[str, Any]  # Any: JSON
    """Claim of the running job."""

    @classmethod
    def prepare(cls, service: Installation) -> Attack:
        """Upload a data set and start a job."""
        _raise_file_limit()
        file_id = service.new_file()
        service.new_job(file_id)
        hello = {
            "worker_id": "w", "queue": "train", "host": "h", "device": "cpu", "version": "1",
            "models": [BASE_MODEL],
        }  # fmt: skip
        with service.worker() as worker:
            worker.post("workers/hello", json=hello).raise_for_status()
            claim = worker.post("jobs/claim", json={"worker_id": "w"}).raise_for_status().json()
        return cls(service=service, file_id=file_id, claim={**claim, "worker_id": "w"})

    def connect(self, **options: int) -> socket.socket:
        connection = socket.socket()
        for name, value in options.items():
            connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        connection.settimeout(20)
        connection.connect((self.service.host, self.service.port))
        return connection

    def get(self, path: str) -> bytes:
        """Return the bytes of a GET request."""
        key = self.service.api_key
        return f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode()


def headers(attack: Attack) -> dict[str, Any]:
    """Send 100 MiB of HTTP headers without an API key, over 20 connections at a time. The service
    closes a connection after 64 KiB, so many connections are needed."""
    piece = (b"x-a: " + b"a" * 1000 + b"\r\n") * 16
    sent, connections, lock = 0, 0, threading.Lock()

    def send(_: int) -> None:
        nonlocal sent, connections
        while sent < HEADERS_BYTES:
            with attack.connect() as connection, contextlib.suppress(OSError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
                with lock:
                    connections += 1
                while sent < HEADERS_BYTES:
                    connection.sendall(piece)
                    with lock:
                        sent += len(piece)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(send, range(20)))
    return {"sent_mib": round(sent / MIB, 1), "connections": connections}


def half_open(attack: Attack) -> dict[str, Any]:
    """Open 1,100 connections that send half a request."""
    with contextlib.ExitStack() as stack:
        for _ in range(HALF_OPEN):
            connection = stack.enter_context(attack.connect())
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        time.sleep(HOLD_SECONDS)
    return {"connections": HALF_OPEN}


def large_jobs(attack: Attack) -> dict[str, Any]:
    """Send 60 create requests of 4 MiB, which are refused, and 60 create requests for the heaviest
    allowed job. Then 8 clients read the list of all jobs at the same time."""
    heaviest = json.dumps(heaviest_job(attack.file_id))
    bodies = [json.dumps({"model": BASE_MODEL}).ljust(4 * MIB), heaviest] * LARGE_JOBS

    def create(content: str) -> int:
        with attack.service.user() as user, contextlib.suppress(httpx.TransportError):
            kind = {"content-type": "application/json"}
            return user.post("fine_tuning/jobs", content=content, headers=kind).status_code
        return 0

    def list_all(_: int) -> int:
        jobs, params = 0, {"limit": "1000"}
        with attack.service.user() as user:
            while True:
                reply = user.get("fine_tuning/jobs", params=params).raise_for_status().json()
                jobs += len(reply["data"])
                if not reply["has_more"]:
                    return jobs
                params["after"] = reply["last_id"]

    with ThreadPoolExecutor(2 * LARGE_JOBS) as pool:
        statuses = Counter(pool.map(create, bodies))
    with ThreadPoolExecutor(LISTS) as pool:
        listed = set(pool.map(list_all, range(LISTS)))
    return {
        "job_bytes": len(heaviest),
        "create_statuses": {str(status): count for status, count in sorted(statuses.items())},
        "listed_jobs": sorted(listed),
    }


def heaviest_job(file_id: str) -> dict[str, Any]:  # Any: JSON
    """Return a create request that is near every size limit of a job."""
    grader = {"type": "string_check", "operation": "eq", "reference": "{{item.answer}}"}
    names = [f"g{number}" for number in range(32)]
    named = {name: {**grader, "input": "{{sample.output_text}}" + "x" * 7_800} for name in names}
    multi = {"type": "multi", "graders": named, "calculate_output": " + ".join(names)}
    return {
        "model": BASE_MODEL,
        "training_file": file_id,
        "metadata": {f"{number:064}": "\u4e2d" * 512 for number in range(16)},
        "method": {"type": "reinforcement", "reinforcement": {"grader": multi}},
        "recipe": {
            "lora": {"target_modules": [f"{number:060}" for number in range(1000)]},
            "add_tokens": [f"<{number:058}>" for number in range(1000)],
        },
    }


def completes(attack: Attack) -> dict[str, Any]:
    """Send 60 requests at the same time. Each request completes one of 6 uploads of 64 MiB."""
    part = bytes(8 * MIB)
    with attack.service.user() as user:
        uploads = []
        for number in range(6):
            body = {
                "bytes": UPLOAD_PARTS * len(part), "filename": f"{number}.txt",
                "mime_type": "text/plain", "purpose": "user_data",
            }  # fmt: skip
            upload = user.post("uploads", json=body).raise_for_status().json()["id"]
            path, ids = f"uploads/{upload}/parts", []
            for index in range(UPLOAD_PARTS):
                content = bytes([number, index]) + part[2:]
                reply = user.post(path, files={"data": ("x", content)}).raise_for_status()
                ids.append(reply.json()["id"])
            uploads.append((upload, {"part_ids": ids}))

    def complete(number: int) -> int:
        upload, body = uploads[number % len(uploads)]
        with attack.service.user() as user:
            return user.post(f"uploads/{upload}/complete", json=body).status_code

    began = time.monotonic()
    with ThreadPoolExecutor(COMPLETES) as pool:
        statuses = sorted(set(pool.map(complete, range(COMPLETES))))
    return {"statuses": statuses, "seconds": round(time.monotonic() - began, 2)}


def slow_readers(attack: Attack) -> dict[str, Any]:
    """Start 200 downloads of 64 MiB and 200 event streams whose clients read no byte."""
    with attack.service.user() as user:
        files = {"file": ("big.txt", bytes(64 * MIB))}
        reply = user.post("files", files=files, data={"purpose": "user_data"})
        file_id = reply.raise_for_status().json()["id"]
    events = f"/v1/fine_tuning/jobs/{attack.claim['job_id']}/events?stream=true"
    with contextlib.ExitStack() as stack:
        for path in [f"/v1/files/{file_id}/content"] * SLOW_READERS + [events] * SLOW_READERS:
            connection = stack.enter_context(attack.connect(SO_RCVBUF=4096))
            connection.sendall(attack.get(path))
        time.sleep(HOLD_SECONDS)
    return {"connections": 2 * SLOW_READERS}


def creates(attack: Attack) -> dict[str, Any]:
    """Send 1,000 create requests at 100 a second. The CPU time of the API includes the requests
    of attack_probe.py, which run at the same time."""
    service = attack.service
    target = Target(host=service.host, port=service.port, key=service.api_key)
    load = Load(
        name="create",
        method="POST",
        path="/v1/fine_tuning/jobs",
        body={"model": BASE_MODEL, "training_file": attack.file_id, "suffix": "attack"},
        per_second=100,
        seconds=10,
    )
    cpu = cpu_seconds(service.api_pid)
    figures = run(target, [load])["create"]
    cpu = cpu_seconds(service.api_pid) - cpu
    return {
        **{f"create_{name}": figures[name] for name in ("p50_ms", "p99_ms", "max_ms")},
        "api_cpu_ms_per_create": round(cpu * 1000 / figures["requests"], 2),
    }


ATTACKS: dict[str, Callable[[Attack], dict[str, Any]]] = {
    "headers": headers,
    "half_open": half_open,
    "large_jobs": large_jobs,
    "completes": completes,
    "slow_readers": slow_readers,
    "creates": creates,
}


def _raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
