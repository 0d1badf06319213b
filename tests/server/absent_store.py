"""A store of files that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tunesmith_server.core.storage import Storage, StorageUnavailable


@contextmanager
def store_away() -> Iterator[None]:
    """Fail each read and write of the stores of this process."""

    def fail(*given: Any, **named: Any) -> Any:  # Any: never returns
        raise StorageUnavailable("s3://rows: no answer")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("stream", "size", "put", "put_pieces", "is_good", "link", "put_part"):
            patch.setattr(Storage, name, fail)
        yield
