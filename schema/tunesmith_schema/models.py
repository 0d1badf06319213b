"""Base models, tuned models, and the files of a training result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Request, Response
from .bounds import MAX_FILE_BYTES


class Model(Response):
    """A model that a job can start from: a base model or a tuned model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Time of creation, Unix seconds."""
    owned_by: str
    """Owner: `base` for a base model on this server, `tunesmith` for a model that Tunesmith
    trained."""
    adapter_id: str | None = None
    """Tuned models only: id in `/v1/adapters/{id}`."""
    base_model: str | None = None
    """Tuned models only: name of the base model."""
    kind: Literal["base", "lora", "full"] | str | None = None
    """Kind of model. `base`: a base model; `lora`: a PEFT adapter; `full`: all weights."""
    job_id: str | None = None
    """Tuned models only: job that trained the model."""
    step: int | None = None
    """Tuned models only: optimiser step of the weights."""
    bytes: int | None = None
    """Size in bytes of a tuned model's files, or of a base model's weights; null if the base model
    is not on the API's host."""
    context_length: int | None = None
    """Context length of the base model in tokens; null if unknown."""
    workers: list[str] | None = None
    """Base models only: ids of the live training workers that have the model."""
    serving: Literal["off", "on_demand", "registered"] | str | None = None
    """Serving state. `off`: this server answers no chat requests; `on_demand`: the first request
    loads the model; `registered`: this API process has registered the model with the inference
    server."""


class ModelUse(Response):
    """A job or an evaluation that uses a model."""

    id: str
    object: Literal["model.use"] = "model.use"
    kind: Literal["fine_tuning.job", "evaluation"] | str
    """Kind of the object with this id."""
    name: str | None = None
    """Name of the job, or the suffix if the job has no name. Null for an evaluation, and for a job
    without name and suffix."""
    role: Literal["base_model", "model", "against"] | str
    """Use of the model. `base_model`: a job starts from the model; `model`: an evaluation measures
    the model; `against`: an evaluation compares another model with this one."""
    created_at: int
    """Time of creation, Unix seconds."""
    status: str
    """State of the job, or status of the evaluation."""
    model: str
    """Model that the job or the evaluation was created with."""


class ModelTokenizer(Response):
    """Tokenizer of a model, as files for transformers' `AutoTokenizer`."""

    object: Literal["model.tokenizer"] = "model.tokenizer"
    model: str
    """Name of the model."""
    files: dict[str, str]
    """Contents of the files by name: tokenizer.json, and, if the model has them,
    tokenizer_config.json, config.json, special_tokens_map.json and chat_template.jinja."""


class ModelDeleted(Response):
    """Confirmation that a tuned model was deleted."""

    id: str
    object: Literal["model"] = "model"
    deleted: bool = True


class StoredFile(Request):
    """One file of an adapter, checkpoint or resume point; storage names the file by its SHA-256."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,98}$")
    """Plain file name without folders."""
    bytes: int = Field(ge=0, le=MAX_FILE_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Adapter(Response):
    """Result of a job: a PEFT adapter, or all weights of a fully tuned model."""

    id: str
    object: Literal["adapter"] = "adapter"
    created_at: int
    job_id: str
    model: str
    """Name of the tuned model."""
    base_model: str
    """Name of the base model."""
    kind: Literal["lora", "full"]
    """Kind of weights. `lora`: a PEFT adapter; `full`: all weights."""
    step: int
    """Optimiser step of the weights."""
    bytes: int
    """Total size of `files` in bytes."""
    files: list[StoredFile]
    """Files of the adapter. Download: `/v1/adapters/{id}/content/{name}`."""
    verified: bool | None = None
    """True if the trainer loaded the saved files and they were equal to the model in memory. None
    if the trainer did not load the files, for example the files of a checkpoint."""
    verification_sha256: str | None = None
    """SHA-256 of verification.json, which has the checksums of all other files."""
