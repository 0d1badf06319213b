"""uvicorn, ending live event streams before it waits for its connections to close."""

from __future__ import annotations

import socket

import uvicorn

from .stream import EventHub


class Listener(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, hub: EventHub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A stream has no end of its own: it would hold up the exit, then be cut off.
        self._hub.close()
        await super().shutdown(sockets)
