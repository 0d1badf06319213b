"""Client of any OpenAI-compatible server, for example vLLM with LoRA.

Adapters are written to a folder that the server can read under the same path, and loaded through
vLLM's `/v1/load_lora_adapter`. The API never exposes the route `/v1/load_lora_adapter`. The
OpenAI-compatible server must serve each base model under the name that Tunesmith uses for the
model. An OpenAI-compatible server cannot load full weights at run time.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.storage import Storage, hash_of

from .adapter_refusals import adapter_refusal, wrong_base
from .protocol import EngineStatus, ServedModel
from .upstream import error_of, new_client, unreachable

_STATUS_SECONDS = 1.5
KEEP_SECONDS = 7 * 86400.0
"""Seconds between the last loading of an adapter and the deletion of its files."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class OpenAIServer:
    """Client of the server at `url` (without `/v1`); `folder` is shared with the server."""

    def __init__(
        self, storage: Storage, *, url: str, token: str, folder: Path, socket: str | None = None
    ) -> None:
        self._storage, self._url, self._folder = storage, url, folder
        self._client = new_client(url, token, socket)
        self._folders: dict[str, Path] = {}
        """Folder of each adapter that this process has loaded; the keys are model names."""

    async def send(self, path: str, body: bytes, request_id: str) -> httpx.Response:
        headers = {"content-type": "application/json", "x-request-id": request_id}
        return await self._request(f"/v1{path}", headers=headers, content=body)

    async def register(self, model: ServedModel) -> None:
        if model.kind == "base":
            return  # the server was started with it
        if model.kind == "full":
            raise BadRequest(
                ErrorCode.MODEL_NOT_USABLE,
                f"the inference server cannot load the full weights of {model.id!r}",
                param="model",
                hint="download the weights and start an inference server with them, or leave "
                "TUNESMITH_INFERENCE_URL empty",
            )
        await self._check_base(model)
        folder = await run_in(Plane.CHAT, partial(self._write_files, model))
        load = {"lora_name": model.id, "lora_path": str(folder)}
        reply = await self._request("/v1/load_lora_adapter", json=load)
        if reply.status_code == 400:
            error = await error_of(reply)
            if "already" not in error.message:
                raise adapter_refusal(model, reply, error)
            # An earlier API process loaded it, perhaps with other weights.
            unload = {"lora_name": model.id}
            await (await self._request("/v1/unload_lora_adapter", json=unload)).aclose()
            reply = await self._request("/v1/load_lora_adapter", json=load)
        if not reply.is_success:
            raise adapter_refusal(model, reply, await error_of(reply))
        await reply.aclose()
        self._folders[model.id] = folder

    async def forget(self, model_id: str) -> None:
        reply = await self._request("/v1/unload_lora_adapter", json={"lora_name": model_id})
        await reply.aclose()
        folder = self._folders.pop(model_id, None)
        if folder is not None and folder not in self._folders.values():
            await run_in(Plane.CHAT, partial(shutil.rmtree, folder, ignore_errors=True))

    async def status(self) -> EngineStatus:
        try:
            reply = await self._client.get("/v1/models", timeout=_STATUS_SECONDS)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            return EngineStatus(status="unreachable", waiting_for=str(error)[:300])
        return EngineStatus(status="ready")

    async def close(self) -> None:
        await self._client.aclose()

    async def _check_base(self, model: ServedModel) -> None:
        """Refuse an adapter whose base model the server does not have. If vLLM's own base model
        has weights of the same shapes, vLLM would load the adapter on that model and answer
        nonsense. Servers that list no models are not checked."""
        if model.base is None or model.base.kind != "base":
            return
        try:
            reply = await self._client.get("/v1/models")
            models = reply.json()["data"] if reply.is_success else []
            served = [str(entry["id"]) for entry in models if not entry.get("parent")]
        except httpx.TransportError as error:
            raise unreachable(self._url, error) from error
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if served and model.base.id not in served:
            raise wrong_base(model, model.base.id, served[:5])

    async def _request(self, path: str, **options: object) -> httpx.Response:
        request = self._client.build_request("POST", path, **options)  # type: ignore[arg-type]  # httpx checks them
        try:
            return await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            raise unreachable(self._url, error) from error

    def _remove_unused(self) -> None:
        """Delete the files of adapters that no API process has loaded for `KEEP_SECONDS`."""
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if _DIGEST.match(folder.name) and folder.stat().st_mtime < time.time() - KEEP_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def _write_files(self, model: ServedModel) -> Path:
        folder = self._folder / model.digest
        if folder.is_dir():
            os.utime(folder)
            return folder
        self._remove_unused()
        unfinished = self._folder / f"{model.digest}.{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            for file in model.files:
                pieces = self._storage.stream(file.sha256, 0, file.bytes)
                _write(unfinished / file.name, pieces, file.sha256)
            unfinished.replace(folder)
        except FileNotFoundError as error:
            raise NotFound(
                ErrorCode.CONTENT_MISSING,
                f"the server's storage has lost a file of {model.id!r}",
                param="model",
                hint="restore the storage from a backup, or train the model again",
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return folder


def _write(path: Path, pieces: Iterator[bytes], sha256: str) -> None:
    with path.open("wb+") as file:
        for piece in pieces:
            file.write(piece)
        if hash_of(file)[0] != sha256:
            raise FileNotFoundError(f"{path.name} is damaged in the storage")
