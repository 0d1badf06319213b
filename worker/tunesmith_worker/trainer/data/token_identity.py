"""What a tokenised file depends on, as a hash: a tokenizer by its content, our code, the data.

Nothing here is a path: the same content has the same hash wherever it lies.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from pathlib import Path

from tunesmith_worker.rundir.paths import file_hash
from tunesmith_worker.rundir.plan import DataPlan

from .chat import Tokenizer

_LIBRARIES = ("jinja2", "pyarrow", "tokenizers", "transformers")
_CLOCK = "strftime_now"
"""By which a template asks for the date: Llama 3's writes it into every conversation."""


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Of all that decides what the tokenizer makes of a row: vocabulary, merges, normaliser, added
    and special tokens, chat templates."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("padding", "truncation"):  # left there by the last call; each call sets its own
        backend.pop(name, None)
    what = {
        "backend": backend,
        "chat_template": tokenizer.chat_template,
        "special_tokens": {k: str(v) for k, v in tokenizer.special_tokens_map.items()},
        "split_special_tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
    }
    return _hash(what)


def tokens_key(path: Path, tokenizer: Tokenizer, plan: DataPlan, *, vocabulary: int) -> str:
    """Of everything that decides what `path` gives when it is tokenised. Reads the whole file."""
    dated = _CLOCK in json.dumps(tokenizer.chat_template)
    what = {
        "code": _code_hash(),
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "data": file_hash(path),
        "suffix": path.suffix.lower(),
        "tokenizer": tokenizer_hash(tokenizer),
        "max_seq_length": plan.max_seq_length,
        "overlong": plan.overlong,
        "assistant_only_loss": plan.assistant_only_loss,
        "vocabulary": vocabulary,
        "date": time.strftime("%Y-%m-%d") if dated else None,
    }
    return _hash(what)


def _code_hash() -> str:
    """Of the modules beside this one: a version number would be forgotten some day."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return _hash({source.name: file_hash(source) for source in sources})


def _hash(what: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
