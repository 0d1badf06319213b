"""Checks for unsafe settings: secrets that are easy to guess, and files that other users can read.
Server and worker refuse to start with unsafe settings. Messages name the variable or file and the
remedy, never the secret."""

from __future__ import annotations

import re
import shlex
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, unquote

from pydantic import ValidationError

from .pydantic_texts import plain_text

SHORTEST_TOKEN = 16
"""Minimum length of a token, in characters."""
_MIN_DIFFERENT_CHARACTERS = 4
_RANDOM = "use a random value, for example from `openssl rand -hex 32`"

_WORDS = (
    *("changeme", "changethis", "changeit", "replaceme", "replacethis", "fillin", "fixme", "todo"),
    *("default", "example", "sample", "placeholder", "insecure", "your", "my", "here"),
    *("secret", "password", "passwd", "passw0rd", "pass", "token", "apikey", "letmein", "qwerty"),
    *("admin", "root", "user", "guest", "postgres", "redis", "valkey", "minio", "rabbitmq"),
    *("tunesmith", "worker", "server", "broker", "database", "storage"),
)
_PLACEHOLDER = re.compile(rf"(?:{'|'.join(_WORDS)})*\d{{0,4}}|1234567?8?9?0?")
_URL = re.compile(
    r"[\w+.-]+://(?:(?P<user>[^:/@]*)(?::(?P<password>[^@]*))?@)?"
    r"(?P<host>\[[^\]]*\]|[^/:?#]*)[^?]*(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_OTHER_CREDENTIALS = {"passfile", "sslcert", "ssl_certfile"}
"""Query parameters in URLs for libpq and redis-py whose value is the path of a file with
credentials."""


def is_loopback(host: str) -> bool:
    """Return True if an address or host name always refers to this machine."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1
    return bool((mapped or address).is_loopback)


def check_token(name: str, token: str) -> None:
    """Raise ValueError if a token is short or a placeholder."""
    if _is_placeholder(token):
        raise ValueError(f"{name} is a placeholder: {_RANDOM}")
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(
            f"{name} has {len(token)} characters, fewer than {SHORTEST_TOKEN}: {_RANDOM}"
        )


def check_password(name: str, password: str, user: str = "") -> None:
    """Raise ValueError if a password is a placeholder or equal to the user name."""
    if user and password.lower() == user.lower():
        raise ValueError(f"{name} is the same as its user name: {_RANDOM}")
    if _is_placeholder(password):
        raise ValueError(f"{name} is a placeholder: {_RANDOM}")


def check_url(variable: str, url: str, *, needs_password: bool) -> None:
    """Raise ValueError if a URL contains a default password, or if `needs_password` is set and the
    URL has no password. A URL that refers to this machine, a socket or a folder needs no
    password."""
    for part in re.split(r";(?=[\w+.-]+://)", url):  # Celery accepts several brokers
        _check_single_url(variable, part, needs_password)


def _check_single_url(variable: str, url: str, needs_password: bool) -> None:
    match = _URL.fullmatch(url)
    if match is None:  # the code that uses the URL reports that it is invalid
        return
    query = parse_qs(match["query"] or "", keep_blank_values=True)
    user = unquote(match["user"] or "") or query.get("user", [""])[0]
    password = unquote(match["password"] or "") or query.get("password", [""])[0]
    if password:
        check_password(f"the password in {variable}", password, user)
    hosts = ",".join([*query.get("host", []), *query.get("hostaddr", [])]) or match["host"]
    remote = [host for host in hosts.split(",") if not _is_local(host)]
    if needs_password and remote and not password and not _OTHER_CREDENTIALS & query.keys():
        raise ValueError(
            f"{variable} has no password for {remote[0]}, so anybody who can reach that host can "
            "connect: set a password there and put it into the URL (scheme://user:password@...)"
        )


def _is_local(host: str) -> bool:
    return not host or host.startswith("/") or is_loopback(host)


def check_private(path: Path, name: str) -> None:
    """Raise ValueError if users other than owner and group can read, write or enter `path`."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o007:
        raise ValueError(
            f"{name} {path} is open to every user of this machine (mode {mode:03o}): "
            f"run `chmod o-rwx {shlex.quote(str(path))}`"
        )


def _is_placeholder(secret: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", secret.lower())
    return bool(_PLACEHOLDER.fullmatch(plain)) or len(set(secret)) < _MIN_DIFFERENT_CHARACTERS


def first_error(error: ValidationError) -> str:
    """Return the first validation error of the settings as one line, with the variable's name."""
    first = error.errors(include_url=False)[0]
    text = plain_text(first)
    if not first["loc"]:  # the error message already names the variables
        return text
    variable = f"TUNESMITH_{'_'.join(str(part) for part in first['loc'])}".upper()
    return f"{variable}={first['input']!r}: {text}"
