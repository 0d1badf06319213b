"""What goes wrong in the service while a page is opened, for the error pages."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from tunesmith_server.portal import devices

from ..server.absent_store import store_away

if TYPE_CHECKING:
    from .service import Service

Fault = Callable[["Service"], AbstractContextManager[None]]


@contextmanager
def away(service: Service) -> Iterator[None]:
    """Let the store of files not answer."""
    with store_away():
        yield


@contextmanager
def broken(service: Service) -> Iterator[None]:
    """Let the page of the workers raise an error that nobody expects."""

    def fail(*given: Any, **named: Any) -> Any:  # Any: never returns
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "read", fail)
        yield


@contextmanager
def spent(service: Service) -> Iterator[None]:
    """Use the only request per minute of the caller `limited`."""
    cookie = {"cookie": f"tunesmith_session={service.secrets['limited']}"}
    request = urllib.request.Request(f"{service.url}/portal/jobs", headers=cookie)
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=20):
        pass  # or it was used less than a minute ago
    yield
