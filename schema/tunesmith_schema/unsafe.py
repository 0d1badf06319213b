"""What neither server nor worker starts with: secrets that anybody would guess, files that anybody
can read. Messages name the variable or the file and what to do, and never hold the secret.
"""

from __future__ import annotations

import re
import shlex
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, unquote

from pydantic import ValidationError

from .pydantic_texts import plain_text

SHORTEST_TOKEN = 16
"""Characters."""
_FEWEST_DIFFERENT = 4
_RANDOM = "use a random one, for example from `openssl rand -hex 32`"

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
"""Keys of a URL's query that name a file of credentials: libpq's and redis-py's own."""


def is_loopback(host: str) -> bool:
    """Whether an address, or a name that means one by definition, stays on this machine."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1
    return bool((mapped or address).is_loopback)


def check_token(what: str, token: str) -> None:
    """Raises ValueError for a token that is short or a placeholder."""
    if _is_placeholder(token):
        raise ValueError(f"{what} is a placeholder: {_RANDOM}")
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(
            f"{what} has {len(token)} characters, fewer than {SHORTEST_TOKEN}: {_RANDOM}"
        )


def check_password(what: str, password: str, user: str = "") -> None:
    """Raises ValueError for a password that is a placeholder or the user's own name."""
    if user and password.lower() == user.lower():
        raise ValueError(f"{what} is the same as its user name: {_RANDOM}")
    if _is_placeholder(password):
        raise ValueError(f"{what} is a placeholder: {_RANDOM}")


def check_url(variable: str, url: str, *, needs_password: bool) -> None:
    """Raises ValueError for a default password in a URL; with `needs_password` also for none at
    all, unless the host is this machine or the URL leads to a socket or a folder."""
    for one in re.split(r";(?=[\w+.-]+://)", url):  # Celery takes several brokers
        _check_one_url(variable, one, needs_password)


def _check_one_url(variable: str, url: str, needs_password: bool) -> None:
    match = _URL.fullmatch(url)
    if match is None:  # whoever uses it says what is wrong with it
        return
    query = parse_qs(match["query"] or "", keep_blank_values=True)
    user = unquote(match["user"] or "") or query.get("user", [""])[0]
    password = unquote(match["password"] or "") or query.get("password", [""])[0]
    if password:
        check_password(f"the password in {variable}", password, user)
    hosts = ",".join([*query.get("host", []), *query.get("hostaddr", [])]) or match["host"]
    away = [host for host in hosts.split(",") if not _stays_here(host)]
    if needs_password and away and not password and not _OTHER_CREDENTIALS & query.keys():
        raise ValueError(
            f"{variable} has no password for {away[0]}, which everybody who reaches it could then "
            "use: give the account there one, and put it into the URL (scheme://user:password@...)"
        )


def _stays_here(host: str) -> bool:
    return not host or host.startswith("/") or is_loopback(host)


def check_private(path: Path, what: str) -> None:
    """Raises ValueError when users other than owner and group may read, write or enter `path`."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o007:
        raise ValueError(
            f"{what} {path} is open to every user of this machine (mode {mode:03o}): "
            f"run `chmod o-rwx {shlex.quote(str(path))}`"
        )


def _is_placeholder(secret: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", secret.lower())
    return bool(_PLACEHOLDER.fullmatch(plain)) or len(set(secret)) < _FEWEST_DIFFERENT


def first_error(error: ValidationError) -> str:
    """The first thing wrong with a settings object, in one line, with the variable's name."""
    first = error.errors(include_url=False)[0]
    text = plain_text(first)
    if not first["loc"]:  # several variables together: the sentence names them
        return text
    variable = f"TUNESMITH_{'_'.join(str(part) for part in first['loc'])}".upper()
    return f"{variable}={first['input']!r}: {text}"
