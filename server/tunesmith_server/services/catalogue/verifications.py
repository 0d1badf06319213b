"""Result of the check that an adapter's stored files give the same logits as the trained model."""

from __future__ import annotations

from pydantic import ValidationError

from tunesmith_schema import ErrorCode
from tunesmith_schema.documents import read_file
from tunesmith_schema.verification import VERIFICATION_FILE, Verification
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import AdapterRow

from . import adapters

_MAX_BYTES = 16 * 1024 * 1024


def retrieve(storage: Storage, row: AdapterRow) -> Verification:
    """Return the content of the adapter's verification.json. Raises NotFound if the adapter has no
    verification.json, or if this release cannot read the file."""
    files = [file for file in adapters.files_of(row) if file.name == VERIFICATION_FILE]
    if not files:
        raise NotFound(
            ErrorCode.NO_REPORT,
            f"adapter {row.id!r} has no verification: the trainer did not load its saved files "
            "to compare them",
            hint="the trainer verifies the result of a job, but not the checkpoints",
        )
    try:
        content = b"".join(storage.stream(files[0].sha256, 0, min(files[0].bytes, _MAX_BYTES)))
        return read_file(Verification, content)
    except FileNotFoundError:
        raise NotFound(
            ErrorCode.CONTENT_MISSING,
            f"the server's storage has lost {VERIFICATION_FILE} of adapter {row.id!r}",
            hint="restore the storage from a backup",
        ) from None
    except ValidationError as error:
        raise NotFound(
            ErrorCode.UNREADABLE,
            f"this release cannot read {VERIFICATION_FILE} of adapter {row.id!r}: "
            f"{error.error_count()} wrong fields",
            hint="another release wrote the file: install that release",
        ) from error
