"""vLLM as a child process of `tunesmith serve`, on a Unix socket in a private folder.

The vLLM process is a child of `serve` and not of the API, because vLLM starts slowly and should
outlive a crash of the API. Other users cannot open a socket in a private folder. A TCP port would
be less safe, because another user could listen on it before vLLM does.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunesmith_server.broker import socket_path
from tunesmith_server.children import Child, without_secrets
from tunesmith_server.core.settings import Settings

log = logging.getLogger(__name__)

GUARD = "tunesmith_server.inference.guard"
SERVER = "vllm.entrypoints.openai.api_server"
START_SECONDS = 1800.0
"""Maximum seconds until vLLM answers; it loads the model and compiles kernels."""
UNHEALTHY_SECONDS = 60.0
"""Seconds without a healthy answer after which vLLM is killed and started again."""
POLL_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_FIRST_DELAY, _MAX_DELAY = 10.0, 600.0
"""Shortest and longest delay after a start that failed, in seconds."""
_FIND_SECONDS = 60.0
_ERROR = re.compile(rb"\b\w*(?:Error|Exception): [^\r\n]+|\berror: [^\r\n]+")
"""Pattern of the first line of an error in vLLM's log. The first error in the log is the cause of
later errors."""
_LOG_BYTES, _REASON_CHARACTERS = 1 << 20, 500


@dataclass(kw_only=True)
class VLLMChild(Child):
    """vLLM serving the base model `model` with LoRA adapters."""

    model: str
    socket: Path
    is_ready: bool = False
    healthy_at: float = 0.0
    """Time of the last healthy answer, or of the start."""
    asked_at: float = 0.0
    """Time of the last health check."""
    log_start: int = 0
    """Size of the log at the last start."""

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        super().start()
        self.log_start = self.log_file.stat().st_size
        self.is_ready, self.healthy_at = False, self.started_at

    def restart_if_ended(self) -> None:
        """Restart vLLM if it has ended or is not healthy. After a start that failed, wait 10, 20,
        40 ... 600 s."""
        if self.process is not None and self.process.poll() is None:
            self._check_health(self.process.pid)
        if self.process is not None and self.process.poll() is not None:
            _kill_group(self.process.pid)
            if not self.is_ready:
                log.warning(
                    "vLLM did not start (%s), so our own inference process answers for %s; "
                    "the next start is in %.0f s",
                    self._reason(), self.model, self.restart_delay(),
                )  # fmt: skip
        super().restart_if_ended()
        self.is_ready = self.is_ready and self.process is not None

    def is_stable(self) -> bool:
        return self.is_ready

    def restart_delay(self) -> float:
        return 0.0 if self.is_ready else min(_MAX_DELAY, _FIRST_DELAY * 2.0**self.crashes)

    def stop(self) -> None:
        super().stop()
        self.kill()

    def kill(self) -> None:
        """Kill vLLM and the processes that it has started."""
        super().kill()
        if self.process is not None:
            _kill_group(self.process.pid)

    def _reason(self) -> str:
        """Return the first error in the log since the last start."""
        with self.log_file.open("rb") as file:
            file.seek(self.log_start)
            found = _ERROR.search(file.read(_LOG_BYTES))
        text = found[0].decode(errors="replace") if found else "its log has no error"
        return text.strip()[:_REASON_CHARACTERS]

    def _check_health(self, pid: int) -> None:
        now = time.monotonic()
        if now - self.asked_at < POLL_SECONDS:
            return
        self.asked_at = now
        if is_healthy(self.socket):
            self.healthy_at = now
            if not self.is_ready:
                self.is_ready = True
                seconds = now - self.started_at
                log.info("vLLM answers for %s after %.0f s (pid %d)", self.model, seconds, pid)
        elif now - self.healthy_at > (UNHEALTHY_SECONDS if self.is_ready else START_SECONDS):
            log.warning("vLLM has not answered for %.0f s: killed", now - self.healthy_at)
            self.kill()


def vllm_child(settings: Settings, folders: Mapping[str, Path], logs: Path) -> VLLMChild | None:
    """Return the child process that the settings ask for.

    Return None if the settings name no model, or if vLLM is not installed; a missing vLLM is
    logged.
    `folders`: base models by name. Raises ValueError if the model is unknown.
    """
    name = settings.inference_vllm_model
    if not name:
        return None
    folder = folders.get(name)
    if folder is None:
        raise ValueError(
            f"TUNESMITH_INFERENCE_VLLM_MODEL: no base model {name!r} below TUNESMITH_MODEL_DIRS"
        )
    python = settings.trainer_python or sys.executable
    if not _has_vllm(python):
        log.warning(
            "vLLM is not installed for %s, so our own inference process answers for %s: install "
            "tunesmith[vllm] there, or set TUNESMITH_TRAINER_PYTHON",
            python, name,
        )  # fmt: skip
        return None
    place = socket_path(settings.data_dir, "vllm.sock")
    command = [
        *(sys.executable, "-P", "-m", GUARD),
        *(python, "-P", "-m", SERVER, "--model", str(folder), "--served-model-name", name),
        *("--uds", str(place), "--enable-lora", "--max-lora-rank", "64", "--max-cpu-loras", "64"),
        *shlex.split(settings.inference_vllm_options),
    ]
    return VLLMChild(
        name="vllm",
        command=command,
        env=_environment(),
        log_file=logs / "vllm.log",
        model=name,
        socket=place,
    )


def _environment() -> dict[str, str]:
    """Return the environment without our settings and keys, which vLLM does not need."""
    ours = without_secrets({**os.environ})
    env = {name: value for name, value in ours.items() if not name.startswith("TUNESMITH_")}
    env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # share the cores with trainers
    env |= {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    _, _, others = env.get("CUDA_VISIBLE_DEVICES", "").partition(",")
    env |= {"CUDA_VISIBLE_DEVICES": others} if others else {}  # trainers use the first GPU
    return env


def is_healthy(path: Path) -> bool:
    """Return True if the server on the Unix socket `path` answers that it is healthy."""
    connection = http.client.HTTPConnection("vllm", timeout=_ANSWER_SECONDS)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as plug:
        plug.settimeout(_ANSWER_SECONDS)
        try:
            plug.connect(str(path))
            connection.sock = plug
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def _has_vllm(python: str) -> bool:
    code = "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"
    try:
        found = subprocess.run(
            [python, "-P", "-c", code], stdin=subprocess.DEVNULL, timeout=_FIND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
