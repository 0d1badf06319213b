"""Image of the service `caddy`: Caddy from PyPI, with docker/Caddyfile as Caddy itself reads it.

What differs from a container: the ports, the addresses of both sides, and an authority of its own
whose certificate no program trusts. Caddy uses this authority for the domain `localhost`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .compose_file import Service

CADDY = Path(sys.executable).with_name("caddy")
CADDYFILE = Path(__file__).parents[2] / "docker" / "Caddyfile"


def version() -> str:
    told = subprocess.run([CADDY, "version"], check=True, capture_output=True, text=True)
    return told.stdout.split()[0].removeprefix("v")


def free_ports() -> dict[int, int]:
    """Return a free port of 127.0.0.1 for each published TCP port."""
    here = ("127.0.0.1", 0)
    with socket.create_server(here) as http, socket.create_server(here) as https:
        return {80: http.getsockname()[1], 443: https.getsockname()[1]}


def write_config(
    service: Service, addresses: dict[str, str], ports: dict[int, int], path: Path
) -> None:
    """Write the Caddyfile as JSON, with ports and addresses of this machine."""
    adapted = subprocess.run(
        [CADDY, "adapt", "--config", CADDYFILE, "--adapter", "caddyfile"],
        env=os.environ | service.environment,
        check=True,
        capture_output=True,
        text=True,
    )
    config = json.loads(adapted.stdout)
    http = config["apps"]["http"]
    http["http_port"] = ports[80]
    for server in http["servers"].values():
        assert server["listen"] == [":443"], server["listen"]
        server["listen"] = [f"127.0.0.1:{ports[443]}"]
    for proxy in _handlers(http, "reverse_proxy"):
        for upstream in proxy["upstreams"]:
            name, _, port = upstream["dial"].partition(":")
            upstream["dial"] = f"{addresses[name]}:{port}"
        # The API trusts the addresses of the containers' network.
        proxy["transport"] = {"protocol": "http", "local_address": addresses[service.name]}
    authorities = {"local": {"install_trust": False}}
    config["apps"]["pki"] = {"certificate_authorities": authorities}
    config["admin"] = {"disabled": True}
    path.write_text(json.dumps(config))


def _handlers(node: Any, name: str) -> list[dict[str, Any]]:
    """Return all handlers of this name below a node of the configuration. Any: JSON."""
    if isinstance(node, list):
        return [found for item in node for found in _handlers(item, name)]
    if not isinstance(node, dict):
        return []
    inner = [found for item in node.values() for found in _handlers(item, name)]
    return [node, *inner] if node.get("handler") == name else inner
