"""Why a run failed, in words a user can act on: exceptions become `JobFailure`s here.

Does not import torch: a light worker uses the data errors too.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure

_MESSAGE_LIMIT = 4000
EXIT_DISK_FULL = 74
"""Of a trainer that had not even the space to say so (EX_IOERR of sysexits.h)."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
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


def failure_of(error: BaseException) -> JobFailure:
    """What to tell the user about `error`."""
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
    return RunError(
        ErrorCode.TRAINER_CRASHED,
        f"The trainer crashed: {type(error).__name__}: {error}",
        category=ErrorCategory.INFRASTRUCTURE,
        hint=_SUPPORT,
    ).failure


def say(failure: JobFailure) -> None:
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


@contextmanager
def naming_batch_size(batch_size: int) -> Iterator[None]:
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
