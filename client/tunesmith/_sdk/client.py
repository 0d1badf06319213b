"""The client, which gives access to all resources of a server."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx

from tunesmith._http.connection import Http
from tunesmith._http.errors import InvalidArgumentError
from tunesmith._http.settings import DEFAULT_BASE_URL, ClientSettings
from tunesmith_schema import Me

from .adapters import Adapters
from .chat import Chat, Completions
from .evaluations import Evaluations
from .files import Files
from .jobs import FineTuning, Jobs
from .models import Models
from .organization import Admin
from .permissions import Checkpoints
from .queue import Queue, Reservations, Usage, Workers
from .sessions import Sessions
from .uploads import Uploads


class Client:
    """Client for one Tunesmith server, with the same methods as the `openai` client.

    `base_url` and `api_key` default to TUNESMITH_BASE_URL and TUNESMITH_API_KEY. `timeout` is the
    maximum number of seconds without a byte from the server. `max_retries` is the number of tries
    after the first try. `project` is the id of a project. Only an admin key needs `project`,
    because any other key belongs to one project.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        project: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 2,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        settings = ClientSettings.from_environment()
        self.api_key = _checked_key(api_key or settings.api_key.get_secret_value())
        self._http = Http(
            base_url=_checked_url(base_url or settings.base_url),
            api_key=self.api_key,
            timeout=timeout,
            max_retries=max_retries,
            project=project,
            transport=transport,
        )
        self.uploads = Uploads(self._http)
        self.files = Files(self._http, self.uploads)
        self.fine_tuning = FineTuning(
            self._http, Jobs(self._http, self.files), Checkpoints(self._http)
        )
        self.evaluations = Evaluations(self._http, self.files)
        self.chat = Chat(self._http)
        self.completions = Completions(self._http)
        self.models = Models(self._http)
        self.queue = Queue(self._http)
        self.workers = Workers(self._http)
        self.reservations = Reservations(self._http)
        self.usage = Usage(self._http)
        self.adapters = Adapters(self._http)
        self.sessions = Sessions(self._http)
        self.admin = Admin(self._http)

    def me(self) -> Me:
        """Return the owner of the key, the project and the rights in it."""
        return self._http.get(Me, "me")

    @property
    def base_url(self) -> str:
        """Return the URL of the API, which ends in `/v1`."""
        return self._http.base_url

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidArgumentError(f"base_url {text!r} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidArgumentError(
            f"base_url {text!r} is not an http or https URL", hint=f"for example {DEFAULT_BASE_URL}"
        )
    return url


def _checked_key(text: str) -> str:
    key = text.strip()
    if not key:
        raise InvalidArgumentError(
            "no API key", hint="set TUNESMITH_API_KEY, or pass api_key= to Client"
        )
    # The message must not contain the key.
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidArgumentError(
            "the API key contains a space, a line break or another invalid character",
            hint="copy the key again from the output of `tunesmith keys create`",
        )
    return key
