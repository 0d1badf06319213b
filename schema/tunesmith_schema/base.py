"""Base classes of requests and responses. A request with an unknown key is refused with an error
that names the nearest valid key."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""Text that every database can store: valid Unicode without NUL."""

FROM_SERVER = "from_server"
"""Name of an entry in pydantic's validation context. If the context has this entry, a client
ignores fields that only a newer server knows."""
IGNORED = "ignored"
"""Name of an entry in pydantic's validation context. Its value is a list: if FROM_SERVER is set,
each pydantic model adds the keys that it ignores to this list."""

_ALIASES = {
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "n_epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "max_length": "max_seq_length",
    "bf16": "precision",
    "fp16": "precision",
}
"""Names that other programs use, and our names for the same fields; used only in hints."""


def with_example(example: dict[str, Any]) -> ConfigDict:  # Any: JSON
    """Return a pydantic configuration with an example request body for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"additionalProperties": False, "examples": [example]})


class Request(BaseModel):
    """Object that a caller sends. An unknown key raises an error, which names the nearest valid
    key."""

    model_config = ConfigDict(
        extra="ignore",  # only with FROM_SERVER; else the validator below refuses unknown keys
        use_attribute_docstrings=True,
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_field(
        cls,
        value: Any,  # whatever JSON the caller sent
        info: ValidationInfo,
    ) -> Any:
        if not isinstance(value, dict):
            return value
        if info.context and info.context.get(FROM_SERVER):
            if (ignored := info.context.get(IGNORED)) is not None:
                ignored += [str(key)[:80] for key in value if key not in cls.model_fields]
            return value
        for key in value:
            if key in cls.model_fields:
                continue
            close = difflib.get_close_matches(str(key)[:80], cls.model_fields, n=1, cutoff=0.6)
            near = [_ALIASES.get(str(key), ""), *close]
            near = [name for name in near if name in cls.model_fields]
            advice = (
                f"did you mean '{near[0]}'?"
                if near
                else f"valid fields: {', '.join(cls.model_fields)}"
            )
            raise PydanticCustomError(
                "unknown_field",
                "unknown field '{field}': {advice}",
                {"field": str(key)[:80].encode(errors="replace").decode(), "advice": advice},
            )
        return value


class Response(BaseModel):
    """Object that the service returns. An older client ignores keys that a newer server adds."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


T = TypeVar("T")


class Page(Response, Generic[T]):
    """One page of a list, in OpenAI's format."""

    # pydantic would search the whole call stack for the source of each Page[...].
    model_config = ConfigDict(use_attribute_docstrings=False)

    object: str = "list"
    data: list[T] = Field(description="Items of the page, in the requested order.")
    has_more: bool = Field(
        default=False,
        description="True if more items follow; `after=<last_id>` requests the next page.",
    )
    first_id: str | None = Field(default=None, description="Id of the first item of the page.")
    last_id: str | None = Field(default=None, description="Id of the last item of the page.")
