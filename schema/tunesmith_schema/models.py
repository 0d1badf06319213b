"""Base models, tuned models, and the files that training produced."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Request, Response


class Model(Response):
    """Something that a job can start from or that one made."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix seconds."""
    owned_by: str
    """`base` for a model on this host, `tunesmith` for one trained here."""
    adapter_id: str | None = None
    """Set on tuned models: what `/v1/adapters/{id}` calls it."""
    base_model: str | None = None
    """Set on tuned models: what it was trained on."""


class ModelDeleted(Response):
    """Answer to the deletion of a tuned model."""

    id: str
    object: Literal["model"] = "model"
    deleted: bool = True


class StoredFile(Request):
    """One file of an artifact. Content is found by its hash."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,98}$")
    """Plain file name, no folders."""
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Adapter(Response):
    """What a job produced: a PEFT adapter, or all weights of a full-tuned model."""

    id: str
    object: Literal["adapter"] = "adapter"
    created_at: int
    job_id: str
    model: str
    """The tuned model's name."""
    base_model: str
    """The model it was trained on."""
    kind: Literal["lora", "full"]
    """`lora`: a PEFT adapter; `full`: all weights."""
    step: int
    """Optimiser step it was taken at."""
    bytes: int
    """Sum over `files`."""
    files: list[StoredFile]
    """Each can be had at `/v1/adapters/{id}/content/{name}`."""
