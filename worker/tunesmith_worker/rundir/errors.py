"""Why a run failed, in words a user can act on: exceptions become `JobFailure`s here.

Does not import torch: a light worker uses the data errors too.
"""

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
"""Of a trainer that had not even the space to say so (EX_IOERR of sysexits.h)."""
EXIT_READ_ONLY = 73
"""Of a trainer that may not write where its result belongs (EX_CANTCREAT of sysexits.h)."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
_DEVICE = ("cuda error", "cuda driver error", "[cuda]", "nccl", "cublas_status", "cudnn_status")
"""As torch, Triton and bitsandbytes begin what a card or its driver said; lower case."""
_SUPPORT = "The worker's log has the traceback. If it happens again, report it with the job id."


class RunError(Exception):
    """A failure that was foreseen: carries what the user will read."""

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
    """The data set is at fault."""

    def __init__(
        self, message: str, *, code: ErrorCode = ErrorCode.DATASET_INVALID, hint: str | None = None
    ) -> None:
        super().__init__(code, message, category=ErrorCategory.DATA, hint=hint)


def failure_of(error: BaseException, writable: Path | None = None) -> JobFailure:
    """What to tell the user about `error`. `writable`: a folder that ought to be."""
    if isinstance(error, RunError):
        return error.failure
    if is_out_of_memory(error):
        advice = (
            "Use a smaller model, recipe.precision='bf16' (full tuning: 'bf16_sr8'), or for LoRA "
            "recipe.quantization='nf4'."
        )
        return _out_of_memory("before training", error, advice).failure
    if is_disk_full(error):
        return disk_full(str(error))
    if is_read_only(error, writable):
        return storage_read_only(str(error))
    if is_device_error(error):
        return _device_error(error)
    return RunError(
        ErrorCode.TRAINER_CRASHED,
        f"The trainer crashed: {type(error).__name__}: {error}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint=_SUPPORT,
    ).failure


def print_failure(failure: JobFailure) -> None:
    """To somebody who runs a program by hand: one line, and one with what to do."""
    sys.stderr.write(f"error: {failure.message}\n")
    if failure.hint:
        sys.stderr.write(f"hint: {failure.hint}\n")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a write failed for want of space, a quota or a limit, whoever did the writing."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        # Rust libraries (safetensors, tokenizers) raise errors of their own.
        if any(f"os error {number})" in str(error) for number in _NO_SPACE):
            return True
        error = error.__cause__
    return False


def disk_full(what: str) -> JobFailure:
    return RunError(
        ErrorCode.DISK_FULL,
        f"The worker's disk is full: {what}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Free space in the worker's data directory, then start the job again.",
    ).failure


def is_read_only(error: BaseException | None, writable: Path | None) -> bool:
    """Whether a write was refused: by a file system that is read-only, or below `writable`."""
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


def storage_read_only(what: str) -> JobFailure:
    return RunError(
        ErrorCode.STORAGE_READ_ONLY,
        f"Nothing can be written on the worker's host: {what}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Is the file system of the worker's data directory mounted read-only, after a disk "
        "error perhaps (`dmesg`), or does the directory belong to another user?",
    ).failure


def is_device_error(error: BaseException) -> bool:
    """Whether the card or its driver gave up, and not for want of memory."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _DEVICE)


def _device_error(error: BaseException) -> JobFailure:
    text = str(error).partition("\n")[0]
    lower = str(error).lower()
    if "device-side assert" in lower:
        hint = (
            "A kernel met an index out of range, mostly a token id or label that the model does "
            "not have. CUDA_LAUNCH_BLOCKING=1 in the worker's environment names the place."
        )
    elif "ecc" in lower:
        hint = (
            "The card's memory is damaged: `nvidia-smi -q -d ECC,ROW_REMAPPER` on the worker's "
            "host; drain the worker (`tunesmith worker drain`) and reset or replace the card."
        )
    else:
        hint = (
            "The card or its driver gave up: `dmesg | grep -i xid` and `nvidia-smi` on the "
            "worker's host. If it happens again there, drain the worker and reset the card."
        )
    return RunError(
        ErrorCode.DEVICE_ERROR,
        f"The device failed: {type(error).__name__}: {text}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint=hint,
    ).failure


@contextmanager
def explain_out_of_memory(batch_size: int) -> Iterator[None]:
    """When memory runs out in here, say at which batch size and what to set instead."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        smaller = (
            f"Set recipe.per_device_train_batch_size to {batch_size // 2}, a"
            if batch_size > 1
            else "Set a"
        )
        advice = f"{smaller} lower recipe.max_seq_length, or recipe.gradient_checkpointing=true."
        raise _out_of_memory(f"at batch_size={batch_size}", error, advice) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the host's or the device's memory did not suffice."""
    # torch.OutOfMemoryError is a RuntimeError; the others are a CPU's allocator, by platform.
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
