"""From the files that a spec names to what a trainer is fed with; what was lost is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith_schema import RunSpec
from tunesmith_worker.engine.model.base_model import Base
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.rundir.process import SpawnSettings

from .row_numbers import RowNumbers
from .token_cache import TokenCache
from .token_stream import Work, usable_processes
from .tokens import TokenizedRows, pack, tokenize_file


@dataclass(frozen=True, kw_only=True)
class Prepared:
    training: TokenizedRows
    validation: TokenizedRows | None
    row_numbers: RowNumbers
    """Of the training file."""

    def sets(self, plan: DataPlan, seed: int) -> tuple[Any, Any]:
        """What is trained on and what is evaluated, packed if the plan says so; None: nothing.
        Any: datasets.Dataset, untyped."""
        train = self.training.dataset
        valid = self.validation.dataset if self.validation else None
        if not plan.packing:
            return train, valid
        packed = [one and pack(one, plan.max_seq_length, seed) for one in (train, valid)]
        return packed[0], packed[1]


def prepare(
    run: RunDirectory, spec: RunSpec, base: Base, plan: DataPlan, events: EventLog
) -> Prepared:
    def read(file: str) -> TokenizedRows:
        return _read(run, run.root / file, base, plan, events)

    training = read(spec.training_file)
    path = run.root / spec.training_file
    work = Work(tokenizer=base.tokenizer, plan=plan, name=path.name, vocabulary=base.vocabulary)
    return Prepared(
        training=training,
        validation=read(spec.validation_file) if spec.validation_file else None,
        row_numbers=RowNumbers(path, training.dataset, work),
    )


def _read(
    run: RunDirectory, path: Path, base: Base, plan: DataPlan, events: EventLog
) -> TokenizedRows:
    kept = SpawnSettings.from_environment().token_cache
    tokenized = tokenize_file(
        path,
        base.tokenizer,
        plan,
        vocabulary=base.vocabulary,
        cache=TokenCache(Path(kept)) if kept else None,
        scratch=run.root,
        processes=usable_processes(),
        tell=events.message,
        warn=lambda text: events.message(text, level="warn"),
    )
    counts = tokenized.counts
    events.message(counts.summary(path.name), data=counts.as_data())
    for loss in counts.losses(path.name, plan.max_seq_length):
        events.message(loss, level="warn", data=counts.as_data())
    return tokenized
