"""The base of every wire object: unknown keys are refused, the nearest valid one is offered."""

from __future__ import annotations

import difflib
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Request(BaseModel):
    """What a caller sends. Unknown keys are an error that names the nearest valid one."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_field(cls, value: Any) -> Any:  # Any: whatever JSON the caller sent
        if not isinstance(value, dict):
            return value
        for key in value:
            if key in cls.model_fields:
                continue
            near = difflib.get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.6)
            advice = (
                f"did you mean '{near[0]}'?"
                if near
                else f"valid fields: {', '.join(cls.model_fields)}"
            )
            raise PydanticCustomError(
                "unknown_field",
                "unknown field '{field}': {advice}",
                {"field": str(key)[:80], "advice": advice},
            )
        return value


class Response(BaseModel):
    """What the service answers. A newer server may add keys; an older client ignores them."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


T = TypeVar("T")


class Page(Response, Generic[T]):
    """One page of a list, OpenAI's cursor envelope."""

    object: str = "list"
    data: list[T]
    has_more: bool = False
    """Whether asking again with `after=<last_id>` gives more."""
    first_id: str | None = None
    last_id: str | None = None
