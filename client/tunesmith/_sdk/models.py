"""`client.models`: base models and tuned models."""

from __future__ import annotations

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import Model, ModelDeleted, ModelTokenizer


class Models:
    """Base models on the server's hosts, and tuned models."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self, *, checkpoints: bool = False) -> Page[Model]:
        """List base models and tuned models; `checkpoints` adds the checkpoints."""
        extra = {"checkpoints": "true"} if checkpoints else {}
        return first_page(
            lambda after: self._http.get(wire.Page[Model], "models", {"after": after, **extra}),
            None,
        )

    def retrieve(self, model: str) -> Model:
        return self._http.get(Model, path_of("models", model))

    def tokenizer(self, model: str) -> ModelTokenizer:
        """Return the files of a model's tokenizer. Raises NotFoundError if the API's host does not
        have the base model's folder."""
        return self._http.get(ModelTokenizer, path_of("models", model, "tokenizer"))

    def delete(self, model: str) -> ModelDeleted:
        return self._http.delete(ModelDeleted, path_of("models", model))
