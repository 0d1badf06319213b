"""Which row of its file an example came from: looked up when a row has to be named, and only then,
so that no batch carries numbers about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from .chunks import chunk_rows, read_chunks
from .examples import tokenize
from .token_stream import Work

MOST = 3
"""Rows of the same tokens that are looked up."""


class RowNumbers:
    def __init__(self, path: Path, dataset: Any, work: Work) -> None:
        """`dataset`: what `path` gave, in its order. Any: datasets.Dataset, untyped."""
        self._path, self._dataset, self._work = path, dataset, work

    def __call__(self, ids: Sequence[int], labels: Sequence[int]) -> str:
        """`ids`, `labels`: of one example. Reads the file up to it, and tokenises it again."""
        examples = list(self._examples(ids, labels))
        if not examples:
            return f"a row of {len(ids)} tokens that {self._path.name} does not give"
        numbers = sorted({self._number(example) for example in examples[:MOST]})
        rows = f"row{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        more = " and further ones" if len(examples) > MOST else ""
        same = " (all of the same tokens)" if len(numbers) > 1 or more else ""
        return f"{rows}{more} of {self._path.name}{same}"

    def _examples(self, ids: Sequence[int], labels: Sequence[int]) -> Iterator[int]:
        """Places of the examples with these tokens. The first label of a row is none."""
        wanted = [*ids], [*labels][1:]
        start = 0
        for batch in self._dataset.data.to_batches():
            column = batch.column("input_ids")
            for at in pc.indices_nonzero(pc.equal(pc.list_value_length(column), len(ids))):
                place = at.as_py()
                found = column[place].as_py(), batch.column("labels")[place].as_py()[1:]
                if found == wanted:
                    yield start + place
            start += batch.num_rows

    def _number(self, example: int) -> int:
        """Of the row that gave the `example`-th example."""
        work, seen = self._work, 0
        for chunk in read_chunks(self._path):
            rows = chunk_rows(chunk, work.name)
            _, counts = work.do(chunk)
            if seen + counts.examples <= example:
                seen += counts.examples
                continue
            for row in rows:
                _, counts = tokenize(
                    [row],
                    work.tokenizer,
                    work.plan,
                    name=work.name,
                    vocabulary=work.vocabulary,
                )
                seen += counts.examples
                if seen > example:
                    return row.number
        raise ValueError(f"{self._path.name} has changed: it gives no example {example + 1}")
