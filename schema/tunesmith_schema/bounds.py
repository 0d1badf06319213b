"""Upper bounds of values in requests. The bounds limit the cost to store, send and read a value.

`tests/server/test_bounds.py` fails if a request field has no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import (
    CoreSchema,
    PydanticCustomError,
    PydanticKnownError,
    core_schema,
    to_json,
)

from .base import Text

MAX_STEP = 2**31 - 1
"""Largest step and largest number of steps; the database column has 32 bits."""
MAX_COUNT = 2**63 - 1
"""Largest number in a database column of 64 bits."""
MAX_FILE_BYTES = 2**40
"""Largest file of an adapter or resume point: 1 TiB."""
MAX_FILES = 10_000
"""Maximum number of files of an adapter or resume point."""
MAX_SECONDS = 1e11
"""Latest time in Unix seconds; the year 5138."""
MAX_RECIPE_BYTES = 256 * 1024
"""Maximum size of a recipe as JSON."""
MAX_DEPTH = 64
"""Maximum nesting depth of JSON in a request."""

Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
ObjectId = Annotated[Text, Field(max_length=64)]
"""Id of an object, such as `ftjob-...`."""


@dataclass(frozen=True)
class JsonBound:
    """Annotation that limits the size, the nesting depth and the numbers of a JSON value.

    All integers must fit into 64 bits. With `finite`, NaN and infinity are not allowed either.
    """

    max_bytes: int
    finite: bool = False

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # any type
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "x-max-bytes": self.max_bytes}

    def _check(self, value: Any) -> Any:  # Any: JSON or a model
        check_json(value.model_dump() if isinstance(value, BaseModel) else value, self.finite)
        try:
            size = len(to_json(value))
        except ValueError as error:  # half of a surrogate pair
            raise PydanticCustomError("string_unicode", "must be valid UTF-8") from error
        if size > self.max_bytes:
            raise PydanticCustomError(
                "json_too_large",
                "must have at most {max_bytes} bytes as JSON (has {size})",
                {"max_bytes": f"{self.max_bytes:,}", "size": f"{size:,}"},
            )
        return value


def check_json(document: Any, finite: bool = False) -> None:  # Any: JSON
    """Raise a pydantic error if the document is nested too deeply or has a number that is not
    allowed."""
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise PydanticCustomError(
                "json_too_deep", "must be nested at most {depth} levels deep", {"depth": MAX_DEPTH}
            )
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list | tuple):
                inner += value
            elif isinstance(value, float):
                if finite and not math.isfinite(value):
                    raise PydanticCustomError("finite_number", "must have only finite numbers")
            elif isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise PydanticCustomError("integer_too_large", "has an integer beyond 64 bits")
        level = inner


def at_most(members: int) -> BeforeValidator:
    """Return a validator that refuses an object with more than `members` members, before any member
    is validated. Pydantic adds an error for each wrong member, and thousands of errors would block
    the server for seconds."""

    def check(value: Any) -> Any:  # Any: whatever JSON the caller sent
        if isinstance(value, dict) and len(value) > members:
            context = {"field_type": "Object", "max_length": members, "actual_length": len(value)}
            raise PydanticKnownError("too_long", context)
        return value

    return BeforeValidator(check)


MAX_PAIRS = 16
"""Maximum number of pairs in `metadata`."""
MAX_VALUE = 512
"""Maximum length of a value in `metadata`, in characters."""


def _few_pairs(value: Any) -> Any:  # Any: whatever JSON the caller sent
    if isinstance(value, dict) and len(value) > MAX_PAIRS:
        raise ValueError(f"must have at most {MAX_PAIRS} pairs, got {len(value)}")
    return value


def _metadata_fits(value: dict[str, str]) -> dict[str, str]:
    if any(len(key) > 64 or len(text) > MAX_VALUE for key, text in value.items()):
        raise ValueError(f"keys have at most 64 characters and values at most {MAX_VALUE}")
    return value


Metadata = Annotated[
    dict[Text, Text],
    BeforeValidator(_few_pairs),
    AfterValidator(_metadata_fits),
    JsonBound(64 * 1024),
]
