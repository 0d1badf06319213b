"""Cache of tokenised files, shared by the workers of one host.

Each entry is a folder named after a hash of everything that determines its content; no path is part
of the hash. An entry appears atomically and is verified before use. Entries are removed when they
have not been used for long, or when newer entries need their space.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from tunesmith_schema.versions import installed_version
from tunesmith_worker.rundir.paths import KEEP_SECONDS, file_hash, remove_unused, write_json
from tunesmith_worker.rundir.plan import DataPlan

from .chat import Tokenizer
from .examples import SCHEMA, Batch, Counts

MAX_BYTES = 32 * 2**30
MAX_DISK_SHARE = 0.1
"""Maximum share of the file system that the cache may use. MAX_BYTES is a second limit, and the
smaller limit applies."""
_TOKENS, _ENTRY = "tokens.arrow", "entry.json"

Table = Any  # Any: pyarrow.Table, untyped
Warn = Callable[[str], None]


class _Entry(BaseModel):
    sha256: str
    counts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    table: Table
    """Memory-mapped table with examples.SCHEMA."""
    counts: Counts


class TokensWriter:
    """Writes a cache entry into `folder`, batch by batch, without keeping batches in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / _TOKENS).open("wb")
        self._sha256 = hashlib.sha256()
        self._stream = pa.ipc.new_stream(pa.PythonFile(self, mode="w"), SCHEMA)

    def add(self, batch: Batch) -> None:
        self._stream.write_batch(batch)

    def finish(self, counts: Counts) -> Tokens:
        self._stream.close()
        self._file.close()
        entry = _Entry(sha256=self._sha256.hexdigest(), counts=counts.as_data())
        write_json(self._folder / _ENTRY, entry)
        return Tokens(table=_mapped(self._folder), counts=counts)

    def __enter__(self) -> TokensWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    # The file interface that Arrow requires:
    closed = False

    def write(self, data: Any) -> int:  # Any: bytes or an Arrow buffer
        self._sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None: ...


class TokenCache:
    def __init__(self, folder: Path, *, max_bytes: int | None = None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        share = int(MAX_DISK_SHARE * shutil.disk_usage(folder).total)
        self._max_bytes = min(MAX_BYTES, share) if max_bytes is None else max_bytes

    def get(self, key: str, warn: Warn) -> Tokens | None:
        """Return an entry, or None if the entry is missing or damaged.

        A damaged entry is removed, and `warn` receives the reason.
        """
        folder = self._folder / key
        try:
            entry = _Entry.model_validate_json((folder / _ENTRY).read_bytes())
            with (folder / _TOKENS).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    raise ValueError(f"the hash of {_TOKENS} is wrong")
            os.utime(folder)  # the entry's mtime is the time of its last use
            return Tokens(table=_mapped(folder), counts=Counts(**entry.counts))
        except FileNotFoundError:
            if not folder.is_dir():
                return None
            damage = "a file is missing"
        except ValidationError:
            damage = f"{_ENTRY} is unreadable"
        except (ValueError, TypeError, OSError) as error:
            damage = str(error)
        warn(f"the cached tokens {key[:12]} are damaged ({damage}): the file is tokenised again")
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def keep(self, key: str, folder: Path, warn: Warn) -> None:
        """Move a finished folder of a TokensWriter into the cache.

        The move keeps memory maps of the folder's files valid."""
        try:
            folder.rename(self._folder / key)
        except OSError as error:
            if not (self._folder / key).is_dir():  # otherwise another worker has stored the entry
                warn(f"could not cache the tokens for the next run: {error}")
        remove_unused(self._folder, KEEP_SECONDS)
        self._make_room()

    def _make_room(self) -> None:
        """Remove the least recently used entries until the cache is within the size limit."""
        entries = []
        for folder in self._folder.iterdir():
            # Another worker may be removing the entry, or the path may not be an entry.
            with contextlib.suppress(OSError):
                size = sum(path.stat().st_size for path in folder.iterdir())
                entries.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total <= self._max_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size


def _mapped(folder: Path) -> Table:
    return pa.ipc.open_stream(pa.memory_map(str(folder / _TOKENS))).read_all()


_LIBRARIES = ("jinja2", "pyarrow", "tokenizers", "transformers")
_CLOCK = "strftime_now"
"""Name of the function with which chat templates get the current date. Llama 3's template writes
the date into every conversation."""


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return a hash of everything that determines the tokens of a row: vocabulary, merges,
    normaliser, added and special tokens, chat templates."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("padding", "truncation"):  # each call sets these
        backend.pop(name, None)
    content = {
        "backend": backend,
        "chat_template": tokenizer.chat_template,
        "special_tokens": {k: str(v) for k, v in tokenizer.special_tokens_map.items()},
        "split_special_tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
    }
    return _hash(content)


def tokens_key(path: Path, tokenizer: Tokenizer, plan: DataPlan, *, vocabulary: int) -> str:
    """Return a hash of everything that determines the tokens of a file. Reads the whole file."""
    dated = _CLOCK in json.dumps(tokenizer.chat_template)
    content = {
        "code": _code_hash(),
        "libraries": {name: installed_version(name) for name in _LIBRARIES},
        "data": file_hash(path),
        "suffix": path.suffix.lower(),
        "tokenizer": tokenizer_hash(tokenizer),
        "max_seq_length": plan.max_seq_length,
        "overlong": plan.overlong,
        "assistant_only_loss": plan.assistant_only_loss,
        "vocabulary": vocabulary,
        "date": time.strftime("%Y-%m-%d") if dated else None,
    }
    return _hash(content)


def _code_hash() -> str:
    """Return a hash of the modules in this folder, so that changed code gets new cache keys."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return _hash({source.name: file_hash(source) for source in sources})


def _hash(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
