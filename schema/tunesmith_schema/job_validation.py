"""Answer to a create request that is only validated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Response


class RequestProblem(Response):
    """A reason why a request would be refused."""

    param: str | None = None
    """Dotted name of the field, such as `recipe.lora.r`; null if no field is the cause."""
    message: str
    code: str
    """Error code, one of `ErrorCode`."""
    hint: str | None = None
    """Suggested next step."""


class JobValidation(Response):
    """Answer to `POST /v1/fine_tuning/jobs?validate_only=true`."""

    object: Literal["fine_tuning.job.validation"] = "fine_tuning.job.validation"
    valid: bool
    """True if the same request without `validate_only` would create a job now."""
    warnings: list[RequestProblem] = Field(default_factory=list)
    """Reasons why the inference server will not load the tuned model. The job can still be
    created."""
    problems: list[RequestProblem]
    """All problems of the request: wrong fields, files or a model that cannot be used, and exceeded
    limits.

    Contradictions between fields are reported only when every field is valid.
    """
