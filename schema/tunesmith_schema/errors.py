"""Format of every API error: OpenAI's envelope plus a hint, `retryable` and a request id."""

from __future__ import annotations

from enum import StrEnum

from .base import Response


class ErrorCategory(StrEnum):
    """Category of an error: what must be changed to fix the error."""

    USER = "user"
    """The request or the recipe is wrong: change the request and send it again."""
    DATA = "data"
    """The data set is wrong: fix the named rows."""
    GRADER = "grader"
    """The reward function failed."""
    OUT_OF_MEMORY = "out_of_memory"
    """The recipe needs more memory than the device has."""
    INFRASTRUCTURE = "infrastructure"
    """The service failed: a lost worker, a full disk or a bug in Tunesmith."""


class ErrorCode(StrEnum):
    """Stable error codes for programs; a code is never renamed."""

    INVALID_REQUEST = "invalid_request"
    INVALID_API_KEY = "invalid_api_key"
    PERMISSION_DENIED = "permission_denied"
    EXISTS_ALREADY = "exists_already"
    QUOTA_EXCEEDED = "quota_exceeded"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNKNOWN_FIELD = "unknown_field"
    REQUEST_TOO_LARGE = "request_too_large"
    RANGE_NOT_SATISFIABLE = "range_not_satisfiable"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    FILE_IN_USE = "file_in_use"
    JOB_IN_USE = "job_in_use"
    UPLOAD_CLOSED = "upload_closed"
    UPLOAD_MISMATCH = "upload_mismatch"
    INVALID_TRAINING_FILE = "invalid_training_file"
    INVALID_VALIDATION_FILE = "invalid_validation_file"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_USABLE = "model_not_usable"
    NOT_CANCELLABLE = "not_cancellable"
    NOT_PAUSABLE = "not_pausable"
    NOT_RESUMABLE = "not_resumable"
    NOT_STOPPABLE = "not_stoppable"
    NOT_FORKABLE = "not_forkable"
    NOT_RETRYABLE = "not_retryable"
    NOT_DELETABLE = "not_deletable"
    NOT_SUPPORTED = "not_supported"
    WORKER_NOT_ENROLLED = "worker_not_enrolled"
    FENCED_OUT = "fenced_out"
    CONTENT_MISSING = "content_missing"
    NO_REPORT = "no_report"
    NO_STATS = "no_stats"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    NO_EVALUATION = "no_evaluation"
    INTERNAL = "internal_error"
    UNAVAILABLE = "unavailable"
    UNREADABLE = "unreadable"
    # Codes of failed jobs.
    DATASET_INVALID = "dataset_invalid"
    NO_TRAINABLE_TOKENS = "no_trainable_tokens"
    TEMPLATE_MISSING = "template_missing"
    ROW_TOO_LONG = "row_too_long"
    LOSS_NONFINITE = "loss_nonfinite"
    GRADIENT_NONFINITE = "gradient_nonfinite"
    SELF_CHECK_FAILED = "self_check_failed"
    RECIPE_INVALID = "recipe_invalid"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    GPU_NOT_USABLE = "gpu_not_usable"
    VERSIONS_UNSUPPORTED = "versions_unsupported"
    WORKER_LOST = "worker_lost"
    DEVICE_ERROR = "device_error"
    KILLED_FOR_MEMORY = "killed_for_memory"
    TRAINER_KILLED = "trainer_killed"
    ENGINE_LOST = "engine_lost"
    TRAINER_STALLED = "trainer_stalled"
    STORAGE_READ_ONLY = "storage_read_only"
    BASE_MODEL_GONE = "base_model_gone"
    TRAINER_CRASHED = "trainer_crashed"
    RESUME_MISMATCH = "resume_mismatch"
    RESULT_MISMATCH = "result_mismatch"
    GRADER_INVALID = "grader_invalid"
    GRADER_FAILED = "grader_failed"


class ErrorBody(Response):
    """An error, for people and for programs."""

    message: str
    """The problem, the value that caused it, and the remedy."""
    type: str
    """OpenAI's type of the error, for example `invalid_request_error`."""
    param: str | None = None
    """Dotted name of the request field that caused the error (`recipe.lora.r`)."""
    code: str | None = None
    """Error code, one of `ErrorCode`."""
    hint: str | None = None
    """Suggested next step."""
    retryable: bool = False
    """True if the unchanged request may succeed later."""
    request_id: str | None = None
    """Id of the request, also in the `x-request-id` header and in the server's log."""


class ErrorEnvelope(Response):
    """Body of every answer that reports an error."""

    error: ErrorBody
    """The error; OpenAI's clients read its `message`, `type`, `param` and `code`."""
