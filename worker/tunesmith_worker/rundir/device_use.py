"""Use of this host's memory and GPUs, which workers, trainers and chat announce in files.

Each process has one JSON file in a folder of its user, and locks the file until the process ends.
Training has priority: a trainer requests memory from chat before the trainer makes its plan. Chat
then frees unused memory, and writes to chat's file that the trainer's request is fulfilled."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Literal, Self

from .process import SpawnSettings

IDLE_SECONDS = 5.0
"""Maximum seconds that a trainer waits until chat has freed its unused memory."""
ALL_SECONDS = 30.0
"""Maximum seconds that a trainer waits until chat has freed all of its memory."""
_POLL_SECONDS = 0.02

Kind = Literal["worker", "trainer", "chat"]


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """Device and memory of one process."""

    kind: Kind
    pid: int = field(default_factory=os.getpid)
    gpu: str | None = None
    """UUID of the GPU; None: the CPU and the host's memory."""
    stage: int = 0
    """For a trainer: number of its latest request for memory (1, 2, ...); 0: no request yet."""
    everything: bool = False
    """For a trainer: True if chat must also free the memory of answers in progress."""
    bytes: int | None = None
    """For a trainer: predicted peak of its memory in bytes; None until the plan is made.

    For chat: bytes of the loaded models.
    """
    seen: dict[str, int] = field(default_factory=dict)
    """For chat: number of each trainer's latest fulfilled request; the keys are trainers' names."""


def device_use_folder() -> Path:
    """Return the folder that all processes of this user on this host share."""
    shared = SpawnSettings.from_environment().device_use
    return Path(shared or Path(tempfile.gettempdir(), f"tunesmith-devices-{os.getuid()}"))


def gpu_name(uuid: object) -> str:
    """Return a GPU's UUID in one form, because torch and nvidia-smi write it differently."""
    return str(uuid).removeprefix("GPU-").lower()


class Announcement:
    """The file of this process. If other users can write to the folder, this process announces
    nothing, and no process waits for it."""

    def __init__(self, use: DeviceUse, folder: Path | None = None) -> None:
        self.folder, self.use = folder or device_use_folder(), use
        self.name = f"{use.kind}-{use.pid}-{secrets.token_hex(4)}"
        self._lock: IO[str] | None = None
        with suppress(OSError):
            if _is_private(self.folder):
                self._lock = self._path("lock").open("w", encoding="utf-8")
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                self._write()

    def update(self, use: DeviceUse) -> None:
        """Replace the announced values if they have changed."""
        changed, self.use = use != self.use, use
        if changed and self._lock is not None:
            with suppress(OSError):
                self._write()

    def close(self) -> None:
        if self._lock is not None:
            for ending in ("json", "lock"):
                self._path(ending).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _path(self, ending: str) -> Path:
        return self.folder / f"{self.name}.{ending}"

    def _write(self) -> None:
        unfinished = self._path("part")
        unfinished.write_text(json.dumps(asdict(self.use)), encoding="utf-8")
        unfinished.replace(self._path("json"))


class TrainerUse:
    """A trainer's requests for memory. Nothing is announced before `begin`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._announced: Announcement | None = None

    def begin(self, gpu: str | None) -> None:
        """Announce that this process trains on the GPU with this UUID, or on the CPU."""
        if self._announced is None:
            self._announced = Announcement(DeviceUse(kind="trainer", gpu=gpu), self._folder)

    def make_room(self, *, everything: bool = False) -> bool:
        """Wait until chat has freed its unused memory, or all its memory. Chat then takes no more
        memory until `settle` is called. Return False if no chat process exists, or if chat does not
        confirm in time."""
        if self._announced is None:
            return False
        announced = self._announced
        stage = announced.use.stage + 1
        announced.update(replace(announced.use, stage=stage, everything=everything, bytes=None))
        deadline = time.monotonic() + (ALL_SECONDS if everything else IDLE_SECONDS)
        while time.monotonic() < deadline:
            chats = [
                chat
                for chat in read_uses(announced.folder).values()
                if chat.kind == "chat" and chat.gpu == announced.use.gpu
            ]
            if all(chat.seen.get(announced.name, 0) >= stage for chat in chats):
                return bool(chats)
            time.sleep(_POLL_SECONDS)
        return False

    def settle(self, peak_bytes: int) -> None:
        """Record the predicted peak of this process's memory, so that chat processes may use the
        remaining memory again."""
        if self._announced is not None:
            use = replace(self._announced.use, everything=False, bytes=peak_bytes)
            self._announced.update(use)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._announced is not None:
            self._announced.close()


def read_uses(folder: Path) -> dict[str, DeviceUse]:
    """Return the announcements of running processes, under the names of the processes.

    Files of dead processes are removed.
    """
    uses = {}
    for path in _files(folder):
        if _is_dead(path.with_suffix(".lock")):
            for ending in (".json", ".part", ".lock"):
                with suppress(OSError):
                    path.with_suffix(ending).unlink(missing_ok=True)
            continue
        with suppress(OSError, ValueError, TypeError):
            known = {one.name for one in fields(DeviceUse)}
            values = json.loads(path.read_text(encoding="utf-8"))
            uses[path.stem] = DeviceUse(**{k: v for k, v in values.items() if k in known})
    return uses


def _files(folder: Path) -> list[Path]:
    try:
        files = folder.iterdir() if _is_private(folder) else ()
        return sorted(path for path in files if path.suffix == ".json")
    except OSError:
        return []


def _is_dead(lock: Path) -> bool:
    try:
        with lock.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _is_private(folder: Path) -> bool:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and folder.is_dir()
