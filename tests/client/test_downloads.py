"""Adapters and files are downloaded completely and verified, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tunesmith import Client, DownloadError, NotFoundError

from .fakes import Breaking, Script, client_of, job, refusal

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights" * 1000, "empty": b""}


def adapter() -> httpx.Response:
    stored = [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in FILES.items()
    ]
    body = {
        "id": "adp-1",
        "created_at": 1,
        "job_id": "ftjob-1",
        "model": "ft:tiny:x",
        "base_model": "tiny",
        "kind": "lora",
        "step": 9,
        "bytes": 7002,
        "files": stored,
    }
    return httpx.Response(200, json=body)


class Store:
    """A server of the adapter; `weights` answers for the large file."""

    def __init__(self, weights: Callable[[httpx.Request], httpx.Response] | None = None) -> None:
        self.paths: list[str] = []
        self._weights = weights

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        self.paths.append(path)
        if path == "adapters/adp-1":
            return adapter()
        if path.startswith("fine_tuning/jobs/"):
            done = path.endswith("ftjob-1")
            return httpx.Response(200, json=job("running", adapter_id="adp-1" if done else None))
        name = path.removeprefix("adapters/adp-1/content/")
        if name.startswith("adapter_model") and self._weights is not None:
            return self._weights(request)
        return httpx.Response(200, content=FILES[name])


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", ["adp-1", "ftjob-1"])
def test_an_adapter_is_downloaded_by_its_id_or_its_jobs(name: str, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "adapter"
    assert client_of(Store()).adapters.download(name, target) == target
    assert contents(target) == FILES
    assert [path.name for path in target.parent.iterdir()] == ["adapter"]


def test_a_job_without_an_adapter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="is running and has no adapter"):
        client_of(Store()).adapters.download("ftjob-2", tmp_path / "adapter")


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    client_of(Store()).adapters.download("adp-1", tmp_path / ".")
    assert contents(tmp_path) == FILES


def test_a_complete_copy_is_left_as_it_is(tmp_path: Path) -> None:
    store = Store()
    adapters = client_of(store).adapters
    adapters.download("adp-1", tmp_path / "adapter")
    store.paths.clear()
    adapters.download("adp-1", tmp_path / "adapter")
    assert store.paths == ["adapters/adp-1"]


def test_other_content_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("mine")
    with pytest.raises(DownloadError, match="exists and is not a copy of adp-1") as caught:
        client_of(Store()).adapters.download("adp-1", tmp_path)
    assert "empty directory" in str(caught.value)
    assert contents(tmp_path) == {"adapter_config.json": b"mine"}


@pytest.mark.parametrize("sent", [b"WEIGHTS" * 1000, b"weights" * 2000])
def test_corrupted_content_leaves_nothing_behind(sent: bytes, tmp_path: Path) -> None:
    client = client_of(Store(lambda request: httpx.Response(200, content=sent)))
    with pytest.raises(DownloadError, match=r"sha256|more than the 7000 bytes"):
        client.adapters.download("adp-1", tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_file_leaves_nothing_behind(tmp_path: Path) -> None:
    client = client_of(Store(lambda request: refusal(404)))
    with pytest.raises(NotFoundError):
        client.adapters.download("adp-1", tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []


def broken_off(client_retries: int, *answers: httpx.Response) -> tuple[Client, Script]:
    script = Script(*answers)
    return client_of(Store(script), max_retries=client_retries), script


def test_a_broken_transfer_resumes_where_it_stopped(tmp_path: Path) -> None:
    weights = FILES["adapter_model.safetensors"]
    ranges = {"content-range": "bytes 3000-6999/7000"}
    client, script = broken_off(
        0,
        httpx.Response(200, stream=Breaking(weights[:3000])),
        httpx.Response(206, content=weights[3000:], headers=ranges),
    )
    client.adapters.download("adp-1", tmp_path / "adapter")
    assert contents(tmp_path / "adapter") == FILES
    asked = [request.headers.get("range") for request in script.requests]
    assert asked == [None, "bytes=3000-"]


def test_a_download_from_the_store_is_resumed_through_a_new_link(tmp_path: Path) -> None:
    weights = FILES["adapter_model.safetensors"]
    script = Script(
        httpx.Response(307, headers={"location": "https://bucket.test/w?first"}),
        httpx.Response(200, stream=Breaking(weights[:3000])),
        httpx.Response(307, headers={"location": "https://bucket.test/w?second"}),
        httpx.Response(206, content=weights[3000:], headers={"content-range": "bytes 3000-6999/7"}),
    )

    def weights_or_bucket(request: httpx.Request) -> httpx.Response:
        elsewhere = request.url.host == "bucket.test"
        return script(request) if elsewhere else Store(script)(request)

    client_of(weights_or_bucket).adapters.download("adp-1", tmp_path / "adapter")
    assert contents(tmp_path / "adapter") == FILES
    asked = [(request.url.host, request.headers.get("range")) for request in script.requests]
    assert asked[1::2] == [("bucket.test", None), ("bucket.test", "bytes=3000-")]
    keys = ["authorization" in request.headers for request in script.requests]
    assert keys == [True, False, True, False]


def test_a_server_that_ignores_range_is_read_from_the_start(tmp_path: Path) -> None:
    weights = FILES["adapter_model.safetensors"]
    client, _ = broken_off(
        0,
        httpx.Response(200, stream=Breaking(weights[:3000])),
        httpx.Response(200, content=weights),
    )
    client.adapters.download("adp-1", tmp_path / "adapter")
    assert contents(tmp_path / "adapter") == FILES


def test_a_transfer_without_progress_is_an_error(tmp_path: Path) -> None:
    silent = [httpx.Response(206, stream=Breaking()) for _ in range(3)]
    client, script = broken_off(2, httpx.Response(200, stream=Breaking(b"wei")), *silent)
    with pytest.raises(DownloadError, match=r"of adapter_model\.safetensors broke off"):
        client.adapters.download("adp-1", tmp_path / "adapter")
    assert len(script.requests) == 4
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_downloaded_verified(tmp_path: Path) -> None:
    good = hashlib.sha256(b"rows").hexdigest()
    about = {"id": "file-1", "bytes": 4, "created_at": 1, "filename": "a", "purpose": "fine-tune"}
    script = Script(
        httpx.Response(200, json={**about, "sha256": good}),
        httpx.Response(200, content=b"rows"),
        httpx.Response(200, json={**about, "sha256": good[::-1]}),
        httpx.Response(200, content=b"rows"),
    )
    files = client_of(script).files
    assert files.download("file-1", tmp_path / "new" / "a").read_bytes() == b"rows"
    with pytest.raises(DownloadError, match="a has sha256"):
        files.download("file-1", tmp_path / "b")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "a"]
