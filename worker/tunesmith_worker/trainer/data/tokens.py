"""A data set as the trainer reads it: token ids and labels, memory-mapped from disk.

MAIN PATH of the data: `tokenize_file`. `tokenize_rows` is its plain twin, in memory. Packing is
TRL's.
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
from .examples import IGNORED, Counts, nothing_left, tokenize
from .formats import Row
from .rows import no_rows
from .token_cache import TokenCache, Tokens, TokensWriter, tokens_key
from .token_stream import Result, TokenStream, Work

__all__ = ["IGNORED", "TokenizedRows", "pack", "tokenize_file", "tokenize_rows"]


@dataclass(frozen=True, kw_only=True)
class TokenizedRows:
    dataset: (
        Any  # Any: datasets.Dataset, untyped; columns input_ids, labels (seq_lengths if packed)
    )
    counts: Counts
    first: tuple[int, ...]
    """Token ids of the first example."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example."""
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
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> TokenizedRows:
    """The file's examples, from the cache or made now; `scratch` is where they lie without one.

    `vocabulary`: number of the model's embeddings. Raises DataError for a file that cannot be
    trained on, RunError for a tokenizer that is not the model's."""
    name = name or path.name
    began = time.perf_counter()
    key = tokens_key(path, tokenizer, plan, vocabulary=vocabulary)
    tokens = cache.get(key, warn) if cache is not None else None
    how = "taken from the cache"
    if tokens is None:
        work = Work(tokenizer=tokenizer, plan=plan, name=name, vocabulary=vocabulary)
        # Removed in the end: what is mapped stays readable.
        with (
            tempfile.TemporaryDirectory(prefix=".tokens-", suffix=".part", dir=scratch) as part,
            TokenStream(work, processes=processes, warn=warn) as stream,
        ):
            folder = Path(part) / "entry"
            tokens = _write(folder, stream.results(read_chunks(path)), plan, name)
            if cache is not None:
                cache.keep(key, folder, warn)
        how = f"tokenised by {stream.processes} process{'es'[: 2 * (stream.processes > 1)]}"
    tell(f"{name}: {how} in {time.perf_counter() - began:.2f} s")
    # The fingerprint is given: it would be made of all the content.
    dataset = datasets.Dataset(tokens.table, fingerprint=key[:16])
    first = tuple(dataset[0]["input_ids"])
    return TokenizedRows(dataset=dataset, counts=tokens.counts, first=first)


def _write(folder: Path, results: Iterable[Result], plan: DataPlan, name: str) -> Tokens:
    counts = Counts()
    folder.mkdir()
    with TokensWriter(folder) as writer:
        for batch, of_batch in results:
            writer.add(batch)
            counts.add(of_batch)
        if counts.rows == 0:
            raise no_rows(name)
        if counts.examples == 0:
            raise nothing_left(counts, plan, name)
        return writer.finish(counts)


def tokenize_rows(
    rows: Sequence[Row], tokenizer: Tokenizer, plan: DataPlan, *, name: str, vocabulary: int
) -> TokenizedRows:
    """The same from rows in memory, all at once."""
    batch, counts = tokenize(rows, tokenizer, plan, name=name, vocabulary=vocabulary)
    if counts.examples == 0:
        raise nothing_left(counts, plan, name)
    dataset = datasets.Dataset(pa.Table.from_batches([batch]))
    first = tuple(dataset[0]["input_ids"])
    return TokenizedRows(dataset=dataset, counts=counts, first=first)


def pack(dataset: Any, length: int, seed: int) -> Any:  # Any: datasets.Dataset
    """Several rows to a sequence, best fit first; they do not see one another."""
    return trl.pack_dataset(dataset.shuffle(seed=seed), length, "bfd")
