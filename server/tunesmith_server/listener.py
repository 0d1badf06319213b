"""uvicorn server with TLS, trusted proxies and limits on connections; it ends live event streams at
shutdown."""

from __future__ import annotations

import functools
import socket

import uvicorn
from fastapi import FastAPI

from tunesmith_server.api.deps import State
from tunesmith_server.core.settings import Settings

from .connections import ConnectionGuard, max_connections, raise_file_limit
from .http_protocol import KEEP_ALIVE_SECONDS, GuardedProtocol

_TICKS_PER_SECOND = 10


class Listener(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, state: State, guard: ConnectionGuard) -> None:
        super().__init__(config)
        self._state, self._guard = state, guard

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SECOND == 0:
            self._guard.check()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # An event stream never ends by itself and would delay the exit; an answer may take long.
        self._state.hub.close()
        await self._state.inference.close()
        await super().shutdown(sockets)


def make_listener(app: FastAPI, settings: Settings) -> Listener:
    """Build the server for `app`; `create_app` must have used the same settings."""
    guard = ConnectionGuard(
        per_address=settings.max_connections_per_address,
        total=max_connections(raise_file_limit()),
        trusted_proxies=settings.trusted_proxies,
    )
    config = uvicorn.Config(
        app,
        http=functools.partial(GuardedProtocol, guard=guard),  # type: ignore[arg-type]  # a factory
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        # Set even if empty: otherwise uvicorn reads the variable FORWARDED_ALLOW_IPS.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        log_config=None,
        lifespan="on",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    return Listener(config, app.state.tunesmith, guard)
