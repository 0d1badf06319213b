"""Services of a compose project as processes of this machine, without a container runtime.
Commands, environments, health checks, order and restarts are the same.

Only `Container.translate` differs: each service has a loopback address instead of a name, and a
folder instead of a file system.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from .compose_file import Service
from .images import Image, image_of

T = TypeVar("T")


class Container:
    """Processes, address and folders of one service."""

    def __init__(self, service: Service, addresses: dict[str, str], home: Path) -> None:
        self.service, self.root = service, home / service.name
        self.address = addresses[service.name]
        self.log = home / f"{service.name}.log"
        self.restarts = 0
        self._addresses = addresses
        self._process: subprocess.Popen[bytes] | None = None
        self.root.mkdir()
        self.mounts = {mount.target: self._mounted(mount.source) for mount in service.mounts}
        self._image: Image = image_of(service, addresses, self.root, self.mounts)
        self.ports = self._image.ports
        own = {path: self.root / path.strip("/") for path in ["/tmp", *self._image.own_folders]}
        self._folders = own | self._image.folders | self.mounts
        for path in own:
            self._folders[path].mkdir(parents=True, exist_ok=True)
            self._folders[path].chmod(0o700)  # a new volume inherits the mode of the image's folder

    def _mounted(self, source: str) -> Path:
        """Folder of a mount. A folder of the host is copied, so that containers share no folder."""
        folder = self.root / "mounts" / source.strip("/").replace("/", "-")
        if source.startswith("/"):
            shutil.copytree(source, folder)
        else:
            folder.mkdir(parents=True, mode=0o755)
        return folder

    def translate(self, text: str) -> str:
        """Replace the container's names and paths by names and paths of this machine."""
        names = "|".join(self._addresses)
        text = re.sub(rf"(?<=[@/])({names})(?=:\d)", lambda m: self._addresses[m[1]], text)
        text = re.sub(r"127\.0\.0\.1|0\.0\.0\.0", self.address, text)
        folders = "|".join(sorted(self._folders, key=len, reverse=True))
        return re.sub(
            rf"(?<![\w./-])({folders})(?![\w-])", lambda m: str(self._folders[m[1]]), text
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of the image and the service, without the variables of this
        machine."""
        own = {"HOME": "/tmp", "HOSTNAME": self.service.name}
        whole = own | self._image.environment | self.service.environment
        translated = {key: self.translate(value) for key, value in whole.items()}
        if self._image.programs:
            translated["PATH"] = f"{self._image.programs}:{translated['PATH']}"
        return translated

    def start(self) -> None:
        def die_with_us() -> None:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

        command = self.service.command or self._image.command
        environment = self.environment
        words = [self.translate(word) for word in command]
        program = shutil.which(words[0], path=environment["PATH"])
        assert program, f"{self.service.name}: no program {words[0]}"
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [program, *words[1:]],
                env=environment,
                cwd=self.translate(self._image.working_folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                user=self._image.account,
                preexec_fn=die_with_us,
            )

    def execute(
        self, command: list[str], timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with the container's environment, like `docker compose exec`."""
        words = [self.translate(word) for word in command]
        environment = self.environment
        program = shutil.which(words[0], path=environment["PATH"])
        assert program, f"{self.service.name}: no program {words[0]}"
        return subprocess.run(
            [program, *words[1:]],
            env=environment,
            cwd=self.translate(self._image.working_folder),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def healthy(self) -> bool:
        check = self.service.healthcheck
        assert check is not None, f"{self.service.name} has no health check"
        return self.execute(check.command, check.timeout).returncode == 0

    def poll(self) -> int | None:
        assert self._process is not None, f"{self.service.name} was not started"
        return self._process.poll()

    def tree(self) -> list[psutil.Process]:
        """Return the main process and all its descendants."""
        if self._process is None:
            return []
        try:
            main = psutil.Process(self._process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """Kill all processes with SIGKILL, like the end of a container."""
        _kill(self.tree())
        if self._process is not None:
            self._process.wait(20)

    def stop(self) -> bool:
        """Stop like `docker compose stop`. Return False if a process had to be killed or is still
        running."""
        if self._process is None or self._process.poll() is not None:
            return True
        before = self.tree()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self.service.stop_grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        finally:
            left = [process for process in before if process.is_running()]
            _, alive = psutil.wait_procs(left, timeout=2)
            _kill(alive)
        return not alive


class Host:
    """Containers of a project."""

    def __init__(self, services: dict[str, Service], subnet: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="tunesmith-compose-", dir="/tmp"))
        self.home.chmod(0o755)  # PostgreSQL runs under another account
        addresses = {name: f"{subnet}.{number}" for number, name in enumerate(services, 2)}
        self._services, self._addresses = services, addresses
        self.containers: dict[str, Container] = {}
        self._wanted: list[str] = []

    def container(self, name: str) -> Container:
        if name not in self.containers:
            self.containers[name] = Container(self._services[name], self._addresses, self.home)
        return self.containers[name]

    def up(self) -> None:
        for name in self._services:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a service once its dependencies meet their conditions."""
        if name in self._wanted:
            return
        for other, condition in self._services[name].depends_on.items():
            self.start(other)
            self._await(other, condition)
        self.container(name).start()
        self._wanted.append(name)

    def _await(self, name: str, condition: str) -> None:
        container = self.container(name)
        if condition == "service_completed_successfully":
            status = self.until(lambda: container.poll() is not None, name) and container.poll()
            assert status == 0, f"{name} ended with status {status}: {self.logs()}"
        elif condition == "service_healthy":
            self.until(container.healthy, name)
        else:
            assert condition == "service_started", condition

    def until(self, ask: Callable[[], T], what: str, seconds: float = 60.0) -> T:
        """Wait for a true result and return it. Meanwhile, restart ended containers according to
        their policy."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._tend()
            if answer := ask():
                return answer
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {seconds} s\n{self.logs()}")

    def _tend(self) -> None:
        for name in self._wanted:
            container = self.containers[name]
            if container.poll() is not None and container.service.restart == "unless-stopped":
                container.restarts += 1
                container.start()

    def stop(self, name: str) -> bool:
        self._wanted.remove(name)
        return self.containers[name].stop()

    def down(self) -> dict[str, bool]:
        """Stop the services, dependents first. Return True for each service that exited by
        itself."""
        return {name: self.stop(name) for name in reversed(list(self._wanted))}

    def close(self) -> None:
        for container in self.containers.values():
            container.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.home.glob("*.log"))
        )


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
