"""A tokenising process beside the trainer: `-m tunesmith_worker.trainer.data.token_helper DIR`.

DIR holds the tokenizer and job.json. Chunks come in by stdin; batches go out by stdout, as Arrow.
What goes wrong with a chunk is not told: the trainer does that chunk itself and meets it there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

import pyarrow as pa
from pydantic import BaseModel

from tunesmith_schema import RowFormat
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.rundir.process import die_with_supervisor

from .chat import Tokenizer
from .chunks import Chunk, chunk_rows
from .examples import Batch, Counts, tokenize
from .token_cache import tokenizer_hash


class HelperJob(BaseModel):
    """job.json."""

    name: str
    """The data file's."""
    vocabulary: int
    max_seq_length: int
    overlong: Literal["drop", "truncate", "error"]
    assistant_only_loss: bool
    tokenizer: str
    """Its hash: a tokenizer that is not the same after it was saved and loaded is not used."""


class _Asked(BaseModel):
    """What precedes a chunk's content, on a line of its own."""

    first: int
    size: int
    kind: Literal["lines", "table"]
    format: RowFormat | None


class _Answered(BaseModel):
    """What precedes a batch. No counts: the helper could not do it."""

    size: int = 0
    counts: dict[str, int] | None = None


def ask(to: IO[bytes], answers: IO[bytes], chunk: Chunk) -> tuple[Batch, Counts] | None:
    """The trainer's side. None: the helper could not do it. Raises OSError or ValueError when it
    has ended."""
    asked = _Asked(first=chunk.first, size=len(chunk.content), kind=chunk.kind, format=chunk.format)
    to.write(asked.model_dump_json().encode() + b"\n")
    to.write(chunk.content)
    to.flush()
    answered = _Answered.model_validate_json(answers.readline())
    content = answers.read(answered.size)
    if len(content) != answered.size:
        raise EOFError("the helper ended in the middle of an answer")
    if answered.counts is None:
        return None
    (batch,) = pa.ipc.open_stream(content)
    return batch, Counts(**answered.counts)


def _serve(job: HelperJob, tokenizer: Tokenizer, asked: IO[bytes], answers: IO[bytes]) -> None:
    plan = DataPlan(
        max_seq_length=job.max_seq_length,
        overlong=job.overlong,
        assistant_only_loss=job.assistant_only_loss,
        packing=False,  # the trainer's to do
    )
    for chunk in _chunks(asked):
        answered, content = _Answered(), b""
        try:
            rows = chunk_rows(chunk, job.name)
            batch, counts = tokenize(
                rows, tokenizer, plan, name=job.name, vocabulary=job.vocabulary
            )
            content = _stream(batch)
            answered = _Answered(size=len(content), counts=counts.as_data())
        except Exception:  # the trainer will meet it too, and say what it is
            content = b""
        answers.write(answered.model_dump_json().encode() + b"\n")
        answers.write(content)
        answers.flush()


def _chunks(asked: IO[bytes]) -> Iterator[Chunk]:
    while line := asked.readline():
        head = _Asked.model_validate_json(line)
        content = asked.read(head.size)
        yield Chunk(first=head.first, content=content, kind=head.kind, format=head.format)


def _stream(batch: Batch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def main(folder: Path) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which ends this one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    # Importing transformers' tokenizers takes 1.1 s without torch and 2.5 s with it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # typeshed forbids None
    import transformers

    job = HelperJob.model_validate_json((folder / "job.json").read_bytes())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer_hash(tokenizer) != job.tokenizer:
        sys.stderr.write("the tokenizer is another one after it was saved and loaded\n")
        return 1
    _serve(job, tokenizer, sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    die_with_supervisor()
    sys.exit(main(Path(sys.argv[1])))
