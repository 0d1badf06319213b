"""Start inference processes, and register models with them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import openai

TOKEN = "inference-token-of-the-tests"


@dataclass
class Inference:
    url: str
    http: httpx.Client
    process: subprocess.Popen[str]
    models: Path

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=TOKEN,
            max_retries=0,
            timeout=60,
            _strict_response_validation=True,
        )

    def health(self) -> dict[str, object]:
        answer: dict[str, object] = self.http.get("/health").json()
        return answer

    def add_base(self, name: str) -> None:
        body = {"id": name, "base": name, "kind": "base", "files": []}
        self.http.post("/models", json=body).raise_for_status()

    def add_files(self, name: str, base: str, kind: str, folder: Path) -> list[str]:
        """Register a model and upload what is missing; return the names of the missing files."""
        content = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        hashes = {key: hashlib.sha256(value).hexdigest() for key, value in content.items()}
        files = [{"name": key, "sha256": value} for key, value in hashes.items()]
        body = {"id": name, "base": base, "kind": kind, "files": files}
        answer = self.http.post("/models", json=body)
        if answer.status_code == 200:
            return []
        missing: list[str] = answer.json()["missing"]
        for key in missing:
            path = f"/models/{quote(name, safe='')}/files/{key}"
            headers = {"x-sha256": hashes[key]}
            self.http.put(path, content=content[key], headers=headers).raise_for_status()
        self.http.post("/models", json=body).raise_for_status()
        return missing


@contextmanager
def inference(models: Path, cache: Path, **settings: str) -> Iterator[Inference]:
    environment = {
        **os.environ,
        "TUNESMITH_INFERENCE_TOKEN": TOKEN,
        "TUNESMITH_INFERENCE_CACHE": str(cache),
        "TUNESMITH_INFERENCE_DEVICE": "cpu",
        "TUNESMITH_MODEL_DIRS": str(models),
        **settings,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tunesmith_worker.inference"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["listening"]
            headers = {"authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
                yield Inference(url, http, process, models)
        finally:
            process.terminate()
            process.wait(30)
