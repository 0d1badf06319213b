"""Tokenised data sets of a run.

Events report the dropped rows. `RowNumbers` finds the row of an example in the data file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tunesmith_schema import RunSpec
from tunesmith_worker.engine.model.base_model import Base
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.rundir.process import SpawnSettings

from .chunks import chunk_rows, read_chunks
from .examples import tokenize
from .held_out import held_out_message, held_out_rows
from .token_cache import TokenCache
from .token_stream import Work, usable_processes
from .tokens import TokenizedRows, pack, tokenize_file

_MAX_ROWS_NAMED = 3
"""Maximum number of rows that a message names, if several rows have the same tokens."""


class RowNumbers:
    """Search for the row of the data file from which an example was made.

    Batches carry no row numbers. If a message must name a row, this class searches for the row.
    """

    def __init__(self, path: Path, dataset: Any, work: Work) -> None:
        """`dataset`: examples of the file `path` in the file's order. `Any` stands for
        datasets.Dataset, which has no type hints."""
        self._path, self._dataset, self._work = path, dataset, work

    def __call__(self, ids: Sequence[int], labels: Sequence[int]) -> str:
        """Return a text with the numbers of the file's rows that have these tokens and labels."""
        examples = list(self._examples(ids, labels))
        if not examples:
            return f"a row of {len(ids)} tokens that is not in {self._work.name}"
        numbers = sorted({self._number(example) for example in examples[:_MAX_ROWS_NAMED]})
        rows = f"row{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        more = " and more rows" if len(examples) > _MAX_ROWS_NAMED else ""
        same = " (all with the same tokens)" if len(numbers) > 1 or more else ""
        return f"{rows}{more} of {self._work.name}{same}"

    def _examples(self, ids: Sequence[int], labels: Sequence[int]) -> Iterator[int]:
        wanted = [*ids], [*labels][1:]
        start = 0
        for batch in self._dataset.data.to_batches():
            column = batch.column("input_ids")
            for at in pc.indices_nonzero(pc.equal(pc.list_value_length(column), len(ids))):
                place = at.as_py()
                example = column[place].as_py(), batch.column("labels")[place].as_py()[1:]
                if example == wanted:
                    yield start + place
            start += batch.num_rows

    def _number(self, example: int) -> int:
        work, seen = self._work, 0
        for chunk in read_chunks(self._path):
            rows = chunk_rows(chunk, work.name)
            _, counts = work.tokenize(chunk)
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
        raise ValueError(f"{work.name} has changed: there is no example {example + 1}")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    training: TokenizedRows
    validation: TokenizedRows | None
    row_numbers: RowNumbers
    """Object that finds the row of an example in the training file."""
    held_out: frozenset[int] = frozenset()
    """Row numbers in the training file; these rows are kept out of training."""

    @property
    def trained_rows(self) -> int:
        """Number of rows that have at least one example in the training set."""
        return self.training.counts.kept - len(self.held_out)

    def unpacked_sets(self) -> tuple[Any, Any]:
        """Return the training set, and the validation set or None, both before packing. `Any`
        stands for datasets.Dataset, which has no type hints."""
        whole = self.training.dataset
        if not self.held_out:
            return whole, self.validation.dataset if self.validation else None
        places: tuple[list[int], list[int]] = [], []
        for place, row in enumerate(self.training.rows.to_pylist()):
            places[row in self.held_out].append(place)
        return whole.select(places[0]), whole.select(places[1])

    def evaluation_rows(self) -> tuple[Any, Any]:
        """Return the validation examples and their row numbers. Without validation examples, return
        the training examples. `Any` stands for datasets.Dataset and for a pyarrow column, which
        have no type hints."""
        if self.validation is not None:
            return self.validation.dataset, self.validation.rows
        rows = self.training.rows
        if not self.held_out:
            return self.training.dataset, rows
        is_held_out = pc.is_in(rows, pa.array(sorted(self.held_out), rows.type))
        return self.unpacked_sets()[1], rows.filter(is_held_out)

    def sets(self, plan: DataPlan, seed: int) -> tuple[Any, Any]:
        """Return the training set, and the validation set or None; both sets are packed if the plan
        requires packing. `Any` stands for datasets.Dataset, which has no type hints."""
        train, valid = self.unpacked_sets()
        if not plan.packing:
            return train, valid
        packed = [data and pack(data, plan.max_seq_length, seed) for data in (train, valid)]
        return packed[0], packed[1]


def prepare(
    run: RunDirectory, spec: RunSpec, base: Base, plan: DataPlan, events: EventLog
) -> Prepared:
    def read(file: str) -> TokenizedRows:
        return _read(run, run.root / file, spec.display_name(file), base, plan, events)

    training = read(spec.training_file)
    path = run.root / spec.training_file
    name = spec.display_name(spec.training_file)
    work = Work(tokenizer=base.tokenizer, plan=plan, name=name, vocabulary=base.vocabulary)
    share = spec.recipe.validation_split
    held_out = frozenset[int]()
    if share and not spec.validation_file:
        held_out = held_out_rows(training.rows.to_pylist(), share, spec.seed, name)
        events.message(held_out_message(len(held_out), training.counts.kept, share, name))
    return Prepared(
        training=training,
        validation=read(spec.validation_file) if spec.validation_file else None,
        row_numbers=RowNumbers(path, training.dataset, work),
        held_out=held_out,
    )


def _read(
    run: RunDirectory, path: Path, name: str, base: Base, plan: DataPlan, events: EventLog
) -> TokenizedRows:
    cache = SpawnSettings.from_environment().token_cache
    tokenized = tokenize_file(
        path,
        base.tokenizer,
        plan,
        vocabulary=base.vocabulary,
        cache=TokenCache(Path(cache)) if cache else None,
        scratch=run.root,
        processes=usable_processes(),
        name=name,
        report=events.message,
        warn=lambda text: events.message(text, level="warn"),
    )
    counts = tokenized.counts
    events.message(counts.summary(name), data=counts.as_data())
    for warning in counts.warnings(name, plan.max_seq_length):
        events.message(warning, level="warn", data=counts.as_data())
    return tokenized
