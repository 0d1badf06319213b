"""Free memory and GPUs of chat when training jobs request them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tunesmith_worker.rundir.device_use import (
    Announcement,
    DeviceUse,
    device_use_folder,
    read_uses,
)

from .budget import held_memory
from .device import Choice, choose_device
from .pool import ModelPool

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


class Yielding:
    """Reads the requests of this host's workers and trainers, and answers them."""

    def __init__(self, pool: ModelPool, choice: Choice, folder: Path | None = None) -> None:
        self._pool, self._choice = pool, choice
        self._folder = folder or device_use_folder()

    async def run(self) -> None:
        """Read and answer requests until the task is cancelled."""
        use = DeviceUse(kind="chat", gpu=self._pool.device.gpu)
        with await asyncio.to_thread(Announcement, use, self._folder) as announced:
            while True:
                uses = await asyncio.to_thread(read_uses, self._folder)
                try:
                    use = await self._follow(uses)
                except Exception:  # a failed unload must not end this loop
                    log.exception("cannot give memory to training jobs")
                await asyncio.to_thread(announced.update, use)
                await asyncio.sleep(_POLL_SECONDS)

    async def _follow(self, uses: Mapping[str, DeviceUse]) -> DeviceUse:
        """Leave a GPU that training needs, and free memory. Return the new content of chat's
        announcement file."""
        pool = self._pool
        reserved = frozenset(use.gpu for use in uses.values() if use.kind != "chat" and use.gpu)
        if self._choice == "auto" and (pool.device.is_gpu or pool.device.waiting_for):
            device = await asyncio.to_thread(choose_device, "auto", reserved)
            if pool.device.gpu in (None, *reserved) and device != pool.device:
                await pool.move_to(device)
                log.info("answers on %s; waits for: %s", device.torch, device.waiting_for)
        seen = await pool.yield_to(uses)
        use = DeviceUse(kind="chat", gpu=pool.device.gpu, seen=seen)
        return replace(use, bytes=held_memory(pool.device))
