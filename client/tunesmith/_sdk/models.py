"""`client.models`: base models and tuned models."""

from __future__ import annotations

from typing import Literal

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import Model, ModelDeleted, ModelTokenizer, ModelUse

from .files import Order


class Models:
    """Base models on the server's hosts, and tuned models."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(
        self,
        *,
        base: str | None = None,
        kind: Literal["base", "tuned", "lora", "full"] | None = None,
        text: str | None = None,
        checkpoints: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page[Model]:
        """List base models and tuned models, newest first; `checkpoints` adds the checkpoints.
        `base` selects the models tuned from this base model; `text` selects models by a part of the
        name."""
        filters = {
            "base": base,
            "kind": kind,
            "text": text,
            "checkpoints": "true" if checkpoints else None,
        }

        def fetch(cursor: str | None) -> wire.Page[Model]:
            params = {**filters, "after": cursor, "limit": limit}
            return self._http.get(wire.Page[Model], "models", params)

        return first_page(fetch, after)

    def retrieve(self, model: str) -> Model:
        return self._http.get(Model, path_of("models", model))

    def tokenizer(self, model: str) -> ModelTokenizer:
        """Return the files of a model's tokenizer. Raises NotFoundError if the API's host does not
        have the base model's folder."""
        return self._http.get(ModelTokenizer, path_of("models", model, "tokenizer"))

    def uses(
        self,
        model: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: Order | None = None,
    ) -> Page[ModelUse]:
        """List the jobs and evaluations that use a model, newest first. An evaluation uses two
        models: the measured model and the model to compare with."""
        path = path_of("models", model, "uses")

        def fetch(cursor: str | None) -> wire.Page[ModelUse]:
            params = {"after": cursor, "limit": limit, "order": order}
            return self._http.get(wire.Page[ModelUse], path, params)

        return first_page(fetch, after)

    def delete(self, model: str) -> ModelDeleted:
        """Delete a tuned model, or a single checkpoint by its name."""
        return self._http.delete(ModelDeleted, path_of("models", model))
