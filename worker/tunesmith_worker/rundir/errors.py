"""Convert exceptions to `JobFailure`s with a message and a hint for the user."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure

_MESSAGE_LIMIT = 4000
EXIT_DISK_FULL = 74
"""Exit status if disk space is missing for the trainer's result (EX_IOERR in sysexits.h)."""
EXIT_READ_ONLY = 73
"""Exit status if the trainer cannot write its result (EX_CANTCREAT in sysexits.h)."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
_DEVICE = ("cuda error", "cuda driver error", "[cuda]", "nccl", "cublas_status", "cudnn_status")
"""Lower-case words in device errors of torch, Triton and bitsandbytes."""
_SUPPORT = (
    "See the traceback in the worker's log. If the error happens again, report it with the job id."
)


class RunError(Exception):
    """Expected failure with a message for the user."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        category: ErrorCategory = ErrorCategory.USER,
        hint: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = JobFailure(
            category=category,
            code=code,
            message=message[:_MESSAGE_LIMIT],
            hint=hint,
            param=param,
        )


class DataError(RunError):
    """An error in the data set."""

    def __init__(
        self, message: str, *, code: ErrorCode = ErrorCode.DATASET_INVALID, hint: str | None = None
    ) -> None:
        super().__init__(code, message, category=ErrorCategory.DATA, hint=hint)


def failure_of(error: BaseException, writable: Path | None = None) -> JobFailure:
    """Convert an exception to a failure for the user. `writable`: folder that must be writable."""
    if isinstance(error, RunError):
        return error.failure
    if is_out_of_memory(error):
        advice = (
            "Use a smaller model, or set recipe.precision='bf16' (full tuning: 'bf16_sr8'). With "
            "LoRA, you can also set recipe.quantization='nf4'."
        )
        return _out_of_memory("before training", error, advice).failure
    if is_disk_full(error):
        return disk_full(error_text(error))
    if is_read_only(error, writable):
        return storage_read_only(error_text(error))
    if is_device_error(error):
        return _device_error(error)
    return RunError(
        ErrorCode.TRAINER_CRASHED,
        f"The trainer crashed: {type(error).__name__}: {error_text(error)}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint=_SUPPORT,
    ).failure


def error_text(error: BaseException) -> str:
    """Return the text of an exception; for an OSError, the cause and the path."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    cause = "file not found" if isinstance(error, FileNotFoundError) else error.strerror.lower()
    path = error.filename
    if path is None:
        return cause
    return f"{cause}: {os.fsdecode(path) if isinstance(path, bytes) else path}"


def print_failure(failure: JobFailure) -> None:
    """Print the error and its hint on stderr, each on its own line."""
    sys.stderr.write(f"error: {failure.message}\n")
    if failure.hint:
        sys.stderr.write(f"hint: {failure.hint}\n")


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if a write failed because of disk space, a quota or a file size limit."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        # Rust libraries (safetensors, tokenizers) have their own types of errors.
        if any(f"os error {number})" in str(error) for number in _NO_SPACE):
            return True
        error = error.__cause__
    return False


def disk_full(cause: str) -> JobFailure:
    return RunError(
        ErrorCode.DISK_FULL,
        f"The worker's disk is full: {cause}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Free space in the worker's data directory, then start the job again.",
    ).failure


def is_read_only(error: BaseException | None, writable: Path | None) -> bool:
    """Return True if a file system is read-only, or if a write in `writable` was refused."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EROFS:
            return True
        if f"os error {errno.EROFS})" in str(error):  # Rust libraries
            return True
        if isinstance(error, PermissionError) and writable is not None and error.filename:
            name = error.filename
            path = Path(os.fsdecode(name) if isinstance(name, str | bytes) else ".")
            if path.is_relative_to(writable):
                return True
        error = error.__cause__
    return False


def storage_read_only(cause: str) -> JobFailure:
    return RunError(
        ErrorCode.STORAGE_READ_ONLY,
        f"The worker's storage is not writable: {cause}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Check if the worker's data directory belongs to another user, or if its file system "
        "is mounted read-only. After a disk error, Linux mounts a file system read-only, and "
        "`dmesg` shows the error.",
    ).failure


def is_device_error(error: BaseException) -> bool:
    """Return True for errors of the GPU or its driver, except out of memory."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _DEVICE)


def _device_error(error: BaseException) -> JobFailure:
    text = str(error).partition("\n")[0]
    lower = str(error).lower()
    if "device-side assert" in lower:
        hint = (
            "An index is out of range, usually a token id or label that the model does not have. "
            "Set CUDA_LAUNCH_BLOCKING=1 in the worker's environment to locate the error."
        )
    elif "ecc" in lower:
        hint = (
            "The GPU's memory is damaged: run `nvidia-smi -q -d ECC,ROW_REMAPPER` on the worker's "
            "host, drain the worker (`tunesmith worker drain`) and reset or replace the GPU."
        )
    else:
        hint = (
            "The GPU or its driver failed: run `dmesg | grep -i xid` and `nvidia-smi` on the "
            "worker's host. If the error happens again, drain the worker and reset the GPU."
        )
    return RunError(
        ErrorCode.DEVICE_ERROR,
        f"The device failed: {type(error).__name__}: {text}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint=hint,
    ).failure


class ModelFailed(RunError):
    """An unexpected error of a model before the first step; `__cause__` has the traceback."""


@contextmanager
def explain_model_errors(architecture: str) -> Iterator[None]:
    """Convert unexpected errors raised in this block to errors that name the architecture.

    Before the first step, such errors come from the model and would occur on every worker. Errors
    of files, memory and devices are raised unchanged."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, RunError | OSError) or is_out_of_memory(error)
        if known or is_disk_full(error) or is_device_error(error):
            raise
        raise ModelFailed(
            ErrorCode.MODEL_NOT_USABLE,
            f"{architecture} cannot be trained: {type(error).__name__}: {error_text(error)}",
            hint="docs/reference/models.md lists the supported models. The traceback in the "
            "worker's log names the failing module; TRL without Tunesmith may fail too.",
            param="model",
        ) from error


@contextmanager
def explain_out_of_memory(batch_size: int) -> Iterator[None]:
    """Add the batch size and advice to out-of-memory errors raised in this block."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        advice = "Lower recipe.max_seq_length, or set recipe.gradient_checkpointing=true."
        if batch_size > 1:
            advice = (
                f"Set recipe.per_device_train_batch_size to {batch_size // 2}, lower "
                "recipe.max_seq_length, or set recipe.gradient_checkpointing=true."
            )
        raise _out_of_memory(f"at batch_size={batch_size}", error, advice) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the host or the device ran out of memory."""
    # torch.OutOfMemoryError is a RuntimeError. The other texts come from CPU allocators.
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)
    )


def _out_of_memory(when: str, error: BaseException, advice: str) -> RunError:
    first_line = str(error).partition("\n")[0] or type(error).__name__
    return RunError(
        ErrorCode.OUT_OF_MEMORY,
        f"Out of memory {when}: {first_line}",
        category=ErrorCategory.OUT_OF_MEMORY,
        hint=advice,
    )
