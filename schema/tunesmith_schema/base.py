"""The base of every wire object: unknown keys are refused, the nearest valid one is offered."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""Text that every database can hold: valid Unicode without NUL."""

FROM_SERVER = "from_server"
"""Validation context of a client that reads an answer: keys of a newer server are then dropped."""

_OTHER_NAMES = {
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
"""What other programs call our fields; used for advice only."""


def with_example(example: dict[str, Any]) -> ConfigDict:  # Any: JSON
    """A request's configuration with one body that the OpenAPI document shows."""
    return ConfigDict(json_schema_extra={"additionalProperties": False, "examples": [example]})


class Request(BaseModel):
    """What a caller sends. Unknown keys are an error that names the nearest valid one."""

    model_config = ConfigDict(
        extra="ignore",  # reached only with FROM_SERVER: the validator below refuses otherwise
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
        if not isinstance(value, dict) or (info.context or {}).get(FROM_SERVER):
            return value
        for key in value:
            if key in cls.model_fields:
                continue
            close = difflib.get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.6)
            near = [_OTHER_NAMES.get(str(key), ""), *close]
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
    """What the service answers. A newer server may add keys; an older client ignores them."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


T = TypeVar("T")


class Page(Response, Generic[T]):
    """One page of a list, OpenAI's cursor envelope."""

    object: str = "list"
    data: list[T]
    """The items, in the order that was asked for."""
    has_more: bool = False
    """Whether asking again with `after=<last_id>` gives more."""
    first_id: str | None = None
    """Id of the first item here."""
    last_id: str | None = None
    """Id of the last item here."""
