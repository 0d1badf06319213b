"""Reading of stored documents, which older or newer releases may have written.

Documents are recipes, hyperparameters, methods, spec.json, plan.json, manifests of resume points,
and run reports.

The version of a document is in a column of its database row or in its field `document_version`. A
document in an older form is upgraded step by step when it is read. Unknown fields of another
release are ignored. A wrong value of a known field makes the document unreadable. Requests are not
stored documents, so these rules do not apply to requests. spec.json, which users also write, is
upgraded and then validated as strictly as a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from .base import FROM_SERVER, IGNORED
from .renames import current_names

M = TypeVar("M", bound=BaseModel)
Json = Any  # Any: JSON

DOCUMENT_VERSION = 2
"""Version of the documents that this release writes. Documents without a version have version 1."""
VERSION_FIELD = "document_version"

UPGRADES: Mapping[int, Callable[[Json], Json]] = MappingProxyType({1: current_names})
"""Functions that convert a document of the given version to the next version. Version 2 replaced
former names of values, such as `bf16_error_word` (decision 0021)."""

_MAX_NAMED = 3


class Unreadable(ValueError):
    """Raised if this release cannot read a stored document. The text names the field."""


def upgraded(document: Json, version: int = 1) -> Json:
    """Return a document in the current form. A newer version is returned unchanged. If the stored
    data are damaged and the version is not a number, it counts as 1."""
    first = max(1, version) if type(version) is int else 1
    for step in range(first, DOCUMENT_VERSION):
        document = UPGRADES[step](document)
    return document


def upgraded_file(document: Json) -> Json:
    """Return a file's document in the current form. The document's field `document_version`
    contains its version."""
    if not isinstance(document, dict):
        return document
    version = document.get(VERSION_FIELD)
    version = version if type(version) is int else 1
    current = upgraded(document, version)
    return {**current, VERSION_FIELD: max(version, DOCUMENT_VERSION)}


def read_file(model: type[M], content: bytes, *, strict: bool = False) -> M:
    """Read a JSON file and validate it. The field `document_version` contains the version of the
    document. Raises ValidationError.

    `strict`: refuse unknown fields, as in a request."""
    with suppress(ValueError):  # not JSON: the validation reports the position
        content = to_json(upgraded_file(from_json(content)))
    return model.model_validate_json(content, context=None if strict else {FROM_SERVER: True})


def read_document(
    model: type[M],
    document: Json,
    name: str,
    *,
    version: int = 1,
    ignored: list[str] | None = None,
) -> M:
    """Validate a stored document. Raises Unreadable.

    `name`: the document's name, which errors put before the names of wrong fields. `ignored`: list
    to which the names of unknown fields are added.
    """
    unknown: list[str] = []
    context = {FROM_SERVER: True, IGNORED: unknown}
    try:
        read = model.model_validate(upgraded(document, version), context=context)
    except ValidationError as error:
        raise Unreadable(_fields_in(error, name)) from error
    if ignored is not None:
        ignored += dict.fromkeys(unknown)
    return read


def bad_fields(error: ValidationError) -> set[str]:
    """Return the top-level fields that a validation error names."""
    return {str(item["loc"][0]) for item in error.errors(include_url=False) if item["loc"]}


def _fields_in(error: ValidationError, name: str) -> str:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    texts = [
        f"{'.'.join([name, *map(str, item['loc'])])}: {item['msg']}" for item in errors[:_MAX_NAMED]
    ]
    return "; ".join(texts)
