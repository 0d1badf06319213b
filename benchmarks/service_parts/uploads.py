"""Measure the memory of the API and the SDK during large transfers, and check the content."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx

import tunesmith

from .installation import Installation, installation
from .process_use import watched

_LINE_BYTES = 4096
LIMIT_BYTES = 8 * 1024**3
"""Size limit of one request in this benchmark; the server's default limit is too small for 1
GiB."""

Way = Callable[[str, str, Path], str]
"""Function that transfers a file. The arguments are the API's URL, a key and the file's path; the
result is the sha256 of the received content."""


def measure(folder: Path) -> dict[str, Any]:
    """Measure an upload of 1 GiB in one request, an upload of 1 GiB in parts by the SDK, and a
    download. Any: JSON."""
    path = folder / "rows.jsonl"
    sha256 = write_rows(path, 2**30)
    figures: dict[str, Any] = {"bytes": path.stat().st_size}
    for way in (post_multipart, send_by_sdk, download):
        # Each transfer has a new service. Otherwise stored content or grown memory would improve
        # the next figure.
        below = folder / way.__name__
        below.mkdir()
        with installation(below, MAX_FILE_BYTES=str(LIMIT_BYTES)) as service:
            if way is download:
                send_by_sdk(service.url, service.api_key, path)
            figures[way.__name__] = measure_on(service, way, path, sha256)
    return figures


def measure_on(service: Installation, way: Way, path: Path, sha256: str) -> dict[str, Any]:
    """Measure memory in MB and the time of one transfer. Raises RuntimeError if the received
    content does not have the hash `sha256`."""
    began = time.monotonic()
    with watched(service.api_pid) as api, ProcessPoolExecutor(1, get_context("spawn")) as client:
        received, client_growth = client.submit(_watched_here, way, service, path).result()
    if received != sha256:
        raise RuntimeError(f"{way.__name__}: received sha256 {received}, expected {sha256}")
    return {
        "api_rss_before_mb": api.rss_before_mb,
        "api_rss_growth_mb": api.rss_growth_mb,
        "api_cpu_seconds": api.cpu_seconds,
        "client_rss_growth_mb": client_growth,
        "seconds": round(time.monotonic() - began, 1),
        "sha256_agrees": True,
    }


def _watched_here(way: Way, service: Installation, path: Path) -> tuple[str, float]:
    """Transfer the file by `way`, and return the sha256 of the received content and the memory
    growth of this process in MB.
    """
    with watched(os.getpid()) as use:
        received = way(service.url, service.api_key, path)
    return received, use.rss_growth_mb


def post_multipart(url: str, key: str, path: Path) -> str:
    """Upload in one POST /v1/files. Return the sha256 that the server reports."""
    headers = {"authorization": f"Bearer {key}"}
    with path.open("rb") as content:
        reply = httpx.post(
            f"{url}/v1/files",
            headers=headers,
            data={"purpose": "evals"},
            files={"file": ("rows.jsonl", content)},
            timeout=600,
            trust_env=False,
        )
    return str(reply.raise_for_status().json()["sha256"])


def send_by_sdk(url: str, key: str, path: Path) -> str:
    """Upload with `client.files.create` in parts of 16 MiB. Return the sha256 that the server
    reports."""
    with tunesmith.Client(f"{url}/v1", key, timeout=600) as client:
        return str(client.files.create(file=path, purpose="evals").sha256)


def download(url: str, key: str, path: Path) -> str:
    """Download the newest file. Return the sha256 of the downloaded copy."""
    copy = path.with_name("copy.jsonl")
    with tunesmith.Client(f"{url}/v1", key, timeout=600) as client:
        client.files.download(client.files.list(limit=1).data[0].id, copy)
    with copy.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    copy.unlink()
    return digest


def write_rows(path: Path, size: int) -> str:
    """Write at least `size` bytes of JSON lines that all differ. Return the sha256."""
    digest, written, number = hashlib.sha256(), 0, 0
    with path.open("wb") as file:
        while written < size:
            answer = os.urandom((_LINE_BYTES - 80) // 2).hex()
            line = json.dumps({"prompt": f"row {number}", "completion": answer}).encode() + b"\n"
            digest.update(line)
            written += file.write(line)
            number += 1
    return digest.hexdigest()
