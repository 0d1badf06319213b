"""Models that one API process has registered with one inference server."""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import count
from typing import TYPE_CHECKING

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import NotFound, ServiceError, Unavailable

from .protocol import LIST_MODELS, NOT_LOADED, Engine, ServedModel

if TYPE_CHECKING:  # importing httpx takes 0.2 s, and many servers never chat
    import httpx

log = logging.getLogger(__name__)

ABSENT_SECONDS = 10.0
"""If a request fails because the inference server does not have the registered model, further
requests for it fail for this many seconds without being sent. Then requests are sent again."""

_SERVE_BASE = (
    "start the inference server with this base model and this name (vLLM: --served-model-name), or "
    "leave TUNESMITH_INFERENCE_URL empty: our own process serves all base models"
)


class Registry:
    """Requests to one inference server; a model is registered when a request needs it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._registered: dict[str, tuple[str, int]] = {}
        """Digest of each registered model, and a number that is different for each registration.
        The keys are model names."""
        self._registrations = count()
        self._registering: dict[str, asyncio.Lock] = {}
        self._absent: dict[str, tuple[str, float, NotFound]] = {}
        """Registered models that the inference server does not have; the keys are model names. Each
        value has the model's digest, the time until which requests fail, and the error."""

    def __contains__(self, model_id: str) -> bool:
        return model_id in self._registered

    @property
    def names(self) -> list[str]:
        return [*self._registered]

    async def answer(
        self, model: ServedModel, path: str, body: bytes, request_id: str
    ) -> httpx.Response:
        """Return the server's successful response before its body is read; the caller closes the
        response. Raises ServiceError if the inference server refuses the request or does not
        answer."""
        from .upstream import error_of, refusal  # imports httpx

        self._refuse_absent(model)
        for may_repeat in (True, False):
            registered = await self.ensure_registered(model)
            response = await self.engine.send(path, body, request_id)
            if response.is_success:
                return response
            error = await error_of(response)
            if response.status_code != 404 or error.code not in (NOT_LOADED, None):
                break
            if may_repeat:  # the server has restarted since, or unloads models by itself
                self._forget_registrations(registered)
        if response.status_code == 404 and error.code == NOT_LOADED:
            raise Unavailable(
                ErrorCode.UNAVAILABLE, "the inference server has restarted",
                hint="repeat the request",
            )  # fmt: skip
        if response.status_code == 404:
            absent = NotFound(
                ErrorCode.MODEL_NOT_FOUND,
                f"the inference server does not have {model.id!r}: {error.message}"[:1000],
                param="model",
                hint=error.hint or (_SERVE_BASE if model.kind == "base" else LIST_MODELS),
            )
            self._absent[model.id] = (model.digest, time.monotonic() + ABSENT_SECONDS, absent)
            raise absent
        raise refusal(response, error)

    async def ensure_registered(self, model: ServedModel) -> dict[str, tuple[str, int]]:
        """Register a model, and the tuned model that it is based on, unless they are registered.
        Return the entries of `self._registered` for these models; the keys are model names."""
        registered = {}
        if model.base is not None and model.base.kind != "base":
            registered = await self.ensure_registered(model.base)
        async with self._registering.setdefault(model.id, asyncio.Lock()):
            if self._registered.get(model.id, ("", 0))[0] != model.digest:
                await self.engine.register(model)
                self._registered[model.id] = (model.digest, next(self._registrations))
            return registered | {model.id: self._registered[model.id]}

    async def forget(self, model_id: str) -> None:
        """Unload a deleted model. If the inference server does not answer, log the error and
        continue."""
        known = self._registered.pop(model_id, None)
        self._registering.pop(model_id, None)
        if known is not None:
            try:
                await self.engine.forget(model_id)
            except ServiceError as error:
                log.warning("inference keeps the deleted model %s: %s", model_id, error.message)

    def _refuse_absent(self, model: ServedModel) -> None:
        """Raise the previous error again if the inference server answered less than
        `ABSENT_SECONDS` ago that it does not have this model."""
        digest, end, error = self._absent.get(model.id, ("", 0.0, None))
        if error is not None and digest == model.digest and time.monotonic() < end:
            raise error
        self._absent.pop(model.id, None)

    def _forget_registrations(self, registered: dict[str, tuple[str, int]]) -> None:
        for name, registration in registered.items():
            if self._registered.get(name) == registration:
                del self._registered[name]
