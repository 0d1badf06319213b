"""Reader of compose files. Supports the features of Docker Compose that our files use, and rejects
all others.

These are .env, variables, several files, `extends` and profiles. Starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Tree = dict[str, Any]  # Any: YAML values

_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?:(?P<how>:?[-?])(?P<word>[^}]*))?\})")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_CARRIED_OUT = {
    *("command", "depends_on", "environment", "healthcheck", "image", "profiles", "restart"),
    *("stop_grace_period", "volumes"),
}
_LEFT_TO_AN_ENGINE = {
    *("build", "cap_add", "cap_drop", "deploy", "logging", "mem_limit", "memswap_limit"),
    *("oom_score_adj", "pids_limit", "ports", "security_opt", "shm_size", "ulimits"),
}


class ComposeError(ValueError):
    """Error in a file that Compose would reject or that this reader does not support."""


@dataclass(frozen=True, kw_only=True)
class HealthCheck:
    command: list[str]
    interval: float
    timeout: float
    retries: int
    start_period: float
    start_interval: float
    """Intervals of a health check in seconds, and `retries`."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    source: str
    """Name of a volume, or path on the host."""
    target: str


@dataclass(frozen=True, kw_only=True)
class Service:
    name: str
    image: str
    target: str
    """Stage of docker/Dockerfile; empty for a third-party image."""
    command: list[str]
    environment: dict[str, str]
    mounts: list[Mount]
    ports: list[str]
    depends_on: dict[str, str]
    """Condition for each service."""
    healthcheck: HealthCheck | None
    restart: str
    stop_grace_seconds: float
    raw: Tree = field(repr=False)


def read_env(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def read_project(folder: Path) -> dict[str, Service]:
    """Return the services that `docker compose up` would start in `folder` with its .env."""
    variables = read_env(folder / ".env")
    files = [folder / name for name in variables["COMPOSE_FILE"].split(":")]
    profiles = [name for name in variables.get("COMPOSE_PROFILES", "").split(",") if name]
    return read_files(files, variables, profiles)


def read_files(
    files: Sequence[Path], variables: Mapping[str, str], profiles: Sequence[str] = ()
) -> dict[str, Service]:
    whole: Tree = {}
    for path in files:
        whole = _merge(whole, _resolved(path, variables))
    services = {
        name: _service(name, raw, variables)
        for name, raw in whole["services"].items()
        if not raw.get("profiles") or set(raw["profiles"]) & set(profiles)
    }
    volumes = set(whole.get("volumes") or ())
    for service in services.values():
        for dependency in service.depends_on:
            if dependency not in services:
                raise ComposeError(f"{service.name} depends on undefined service {dependency}")
        for mount in service.mounts:
            if not mount.source.startswith(("/", ".")) and mount.source not in volumes:
                raise ComposeError(f"{service.name} refers to undefined volume {mount.source}")
    return services


def _resolved(path: Path, variables: Mapping[str, str]) -> Tree:
    """Return the content of one file with variables and `extends` resolved."""
    tree: Tree = _interpolate(yaml.safe_load(path.read_text()), variables)
    for name, raw in tree["services"].items():
        if "extends" in raw:
            extends = raw.pop("extends")
            other = _resolved(path.with_name(extends["file"]), variables)
            base = other["services"][extends["service"]]
            if "depends_on" in base:
                raise ComposeError(
                    f"{name} extends a service with depends_on: some releases refuse"
                )
            tree["services"][name] = _merge(base, raw)
    return tree


def _interpolate(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _interpolate(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolate(value, variables) for value in node]
    if not isinstance(node, str):
        return node

    def value(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name, how, word = match["name"], match["how"] or "", match["word"] or ""
        found = variables.get(name)
        if found or (found is not None and not how.startswith(":")):
            return found
        if how.endswith("?"):
            raise ComposeError(f"required variable {name} is missing a value: {word}")
        return word

    left = _VARIABLE.sub("", node)
    if "$" in left:
        raise ComposeError(f"{node!r}: a form of variable that this reader does not know")
    return _VARIABLE.sub(value, node)


def _merge(under: Tree, over: Tree) -> Tree:
    """Merge by the rules of Compose. Mappings are merged. `command` and `test` are replaced. A
    later mount replaces an earlier mount at the same target. Other lists are joined."""
    merged = dict(under)
    for key, value in over.items():
        known = merged.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[key] = _merge(known, value)
        elif key == "volumes" and isinstance(known, list):
            targets = {_mount(text).target for text in value}
            merged[key] = [text for text in known if _mount(text).target not in targets] + value
        elif isinstance(known, list) and key not in ("command", "test"):
            merged[key] = known + [item for item in value if item not in known]
        else:
            merged[key] = value
    return merged


def _service(name: str, raw: Tree, variables: Mapping[str, str]) -> Service:
    if unknown := set(raw) - _CARRIED_OUT - _LEFT_TO_AN_ENGINE:
        raise ComposeError(f"{name}: this reader does not know {sorted(unknown)}")
    # A variable without a value is passed on if it is set.
    environment = {
        key: variables.get(key) if value is None else str(value)
        for key, value in raw.get("environment", {}).items()
    }
    depends_on = raw.get("depends_on", {})
    if isinstance(depends_on, list):
        depends_on = {other: {"condition": "service_started"} for other in depends_on}
    return Service(
        name=name,
        image=raw["image"],
        target=raw.get("build", {}).get("target", ""),
        command=raw.get("command", []),
        environment={key: value for key, value in environment.items() if value is not None},
        mounts=[_mount(text) for text in raw.get("volumes", [])],
        ports=raw.get("ports", []),
        depends_on={other: how["condition"] for other, how in depends_on.items()},
        healthcheck=_healthcheck(raw["healthcheck"]) if "healthcheck" in raw else None,
        restart=raw["restart"],
        stop_grace_seconds=_seconds(raw.get("stop_grace_period", "10s")),
        raw=raw,
    )


def _mount(text: str) -> Mount:
    source, target, *_ = text.split(":")
    return Mount(source=source, target=target)


def _healthcheck(raw: Tree) -> HealthCheck:
    kind, *command = raw["test"]
    return HealthCheck(
        command={"CMD": command, "CMD-SHELL": ["/bin/sh", "-c", *command]}[kind],
        interval=_seconds(raw["interval"]),
        timeout=_seconds(raw["timeout"]),
        retries=raw["retries"],
        start_period=_seconds(raw["start_period"]),
        start_interval=_seconds(raw["start_interval"]),
    )


def _seconds(text: str) -> float:
    return float(text[:-1]) * _UNITS[text[-1]]
