"""vLLM's own server as a process, as docs/how-to/vllm.md starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 240.0
ROLLOUTS = (
    *("--logits-processors", "tunesmith_worker.engine.rollout.vllm.sampler:RequestSampler"),
    *("--worker-extension-cls", "tunesmith_worker.engine.rollout.vllm.receiver.WeightReceiver"),
    *("--logprobs-mode", "processed_logits", "--max-logprobs", "2", "--no-async-scheduling"),
    "--enable-scale-out",
)
"""Options of a server for rollouts."""
CPU = (
    *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(64 << 20)),
    *("--max-model-len", "200", "--max-num-seqs", "24"),
)
VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "HF_HUB_OFFLINE": "1",
}


@dataclass
class VLLMServer:
    command: list[str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=os.environ | VARIABLES,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/health", timeout=5.0).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-3000:])

    def ensure(self) -> None:
        """Start the server if it has ended."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        self.wait()

    def kill(self) -> None:
        """Kill the server and the processes that it started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def vllm_server(
    folder: Path, log: Path, options: Sequence[str], python: str = sys.executable
) -> Iterator[VLLMServer]:
    """Start vLLM with the model in `folder`; ready when the block begins."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    # The command `vllm` of the CPU build does not start: it looks for a package called vllm.
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), *CPU, *options),
    ]
    server = VLLMServer(command, port, log)
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()
