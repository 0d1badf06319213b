"""Data sets for the trainer: token ids and labels, memory-mapped from disk.

`tokenize_file` tokenises a data file; `tokenize_rows` tokenises rows in memory. TRL does the
packing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import trl

from tunesmith_worker.rundir.plan import DataPlan

from .chat import Tokenizer
from .chunks import read_chunks
from .examples import IGNORED, ROW, Counts, no_examples_error, tokenize
from .formats import Row
from .rows import empty_file_error
from .token_cache import TokenCache, Tokens, TokensWriter, tokens_key
from .token_stream import Result, TokenStream, Work

__all__ = ["IGNORED", "TokenizedRows", "pack", "tokenize_file", "tokenize_rows"]


@dataclass(frozen=True, kw_only=True)
class TokenizedRows:
    # Any: datasets.Dataset, untyped; columns input_ids, labels (seq_lengths if packed)
    dataset: Any
    counts: Counts
    first: tuple[int, ...]
    """Token ids of the first example."""
    rows: Any
    """Pyarrow column: for each example, the number of the row that it came from, starting at 1."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each example."""
        return [int(n) for n in pc.list_value_length(self.dataset.data["input_ids"]).to_pylist()]


def tokenize_file(
    path: Path,
    tokenizer: Tokenizer,
    plan: DataPlan,
    *,
    vocabulary: int,
    cache: TokenCache | None,
    scratch: Path,
    processes: int,
    name: str | None = None,
    report: Callable[[str], None],
    warn: Callable[[str], None],
) -> TokenizedRows:
    """Return the file's examples, from the cache or tokenised now.

    `scratch`: folder for the examples if there is no cache.
    `vocabulary`: number of the model's embeddings. `name`: file name for messages. Raises DataError
    for an unusable file, RunError for a tokenizer that does not match the model."""
    name = name or path.name
    began = time.perf_counter()
    key = tokens_key(path, tokenizer, plan, vocabulary=vocabulary)
    tokens = cache.get(key, warn) if cache is not None else None
    how = "read from the cache"
    if tokens is None:
        work = Work(tokenizer=tokenizer, plan=plan, name=name, vocabulary=vocabulary)
        # Mapped data stays readable after the folder is removed.
        with (
            tempfile.TemporaryDirectory(prefix=".tokens-", suffix=".part", dir=scratch) as part,
            TokenStream(work, processes=processes, warn=warn) as stream,
        ):
            folder = Path(part) / "entry"
            tokens = _write(folder, stream.results(read_chunks(path)), plan, name)
            if cache is not None:
                cache.keep(key, folder, warn)
        how = f"tokenised by {stream.processes} process{'es' if stream.processes > 1 else ''}"
    report(f"{name}: {how} in {time.perf_counter() - began:.2f} s")
    # With this fingerprint, datasets does not hash all the content.
    dataset = datasets.Dataset(tokens.table.drop_columns([ROW]), fingerprint=key[:16])
    first = tuple(dataset[0]["input_ids"])
    rows = tokens.table.column(ROW)
    return TokenizedRows(dataset=dataset, counts=tokens.counts, first=first, rows=rows)


def _write(folder: Path, results: Iterable[Result], plan: DataPlan, name: str) -> Tokens:
    counts = Counts()
    folder.mkdir()
    with TokensWriter(folder) as writer:
        for batch, batch_counts in results:
            writer.add(batch)
            counts.add(batch_counts)
        if counts.rows == 0:
            raise empty_file_error(name)
        if counts.examples == 0:
            raise no_examples_error(counts, plan, name)
        return writer.finish(counts)


def tokenize_rows(
    rows: Sequence[Row], tokenizer: Tokenizer, plan: DataPlan, *, name: str, vocabulary: int
) -> TokenizedRows:
    """Tokenise rows that are in memory, and return their examples."""
    batch, counts = tokenize(rows, tokenizer, plan, name=name, vocabulary=vocabulary)
    if counts.examples == 0:
        raise no_examples_error(counts, plan, name)
    table = pa.Table.from_batches([batch])
    dataset = datasets.Dataset(table.drop_columns([ROW]))
    first = tuple(dataset[0]["input_ids"])
    return TokenizedRows(dataset=dataset, counts=counts, first=first, rows=table.column(ROW))


def pack(dataset: Any, length: int, seed: int) -> Any:  # Any: datasets.Dataset
    """Pack several rows into each sequence by best fit, without attention across rows."""
    return trl.pack_dataset(dataset.shuffle(seed=seed), length, "bfd")
