"""uvicorn server with TLS and trusted proxies; it ends live event streams at shutdown."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from tunesmith_server.api.stream import EventHub
from tunesmith_server.core.settings import Settings


class Listener(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, hub: EventHub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # An event stream never ends by itself and would delay the exit.
        self._hub.close()
        await super().shutdown(sockets)


def make_listener(app: FastAPI, settings: Settings) -> Listener:
    """Build the server for `app`; `create_app` must have used the same settings."""
    config = uvicorn.Config(
        app,
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
    return Listener(config, app.state.tunesmith.hub)
