"""Helper process of tokenisation: `python -m tunesmith_worker.trainer.data.token_helper DIR`.

DIR holds the tokenizer and job.json. The helper reads chunks of the data file from stdin and writes
Arrow batches to stdout. The helper reports no errors: the trainer tokenises a failed chunk itself
and raises the error.
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
from .chunks import Chunk, arrow_stream, chunk_rows
from .examples import Batch, Counts, tokenize
from .token_cache import tokenizer_hash


class HelperJob(BaseModel):
    """Content of job.json."""

    name: str
    """Name of the data file, for messages."""
    vocabulary: int
    max_seq_length: int
    overlong: Literal["drop", "truncate", "error"]
    assistant_only_loss: bool
    tokenizer: str
    """Hash of the trainer's tokenizer. The helper exits if its own tokenizer has a different
    hash."""


class _RequestHeader(BaseModel):
    first: int
    size: int
    kind: Literal["lines", "table"]
    format: RowFormat | None


class _ReplyHeader(BaseModel):
    """Header line before a batch. `counts` has the fields of `examples.Counts`, or is None if the
    helper could not tokenise the chunk."""

    size: int = 0
    counts: dict[str, int] | None = None


def request_tokens(to: IO[bytes], replies: IO[bytes], chunk: Chunk) -> tuple[Batch, Counts] | None:
    """Send a chunk to a helper and return the result; None if the helper could not tokenise the
    chunk.
    Raises OSError, EOFError or ValueError if the helper has ended."""
    header = _RequestHeader(
        first=chunk.first, size=len(chunk.content), kind=chunk.kind, format=chunk.format
    )
    to.write(header.model_dump_json().encode() + b"\n")
    to.write(chunk.content)
    to.flush()
    reply = _ReplyHeader.model_validate_json(replies.readline())
    content = replies.read(reply.size)
    if len(content) != reply.size:
        raise EOFError("the helper ended before the end of its reply")
    if reply.counts is None:
        return None
    (batch,) = pa.ipc.open_stream(content)
    return batch, Counts(**reply.counts)


def _serve(job: HelperJob, tokenizer: Tokenizer, requests: IO[bytes], replies: IO[bytes]) -> None:
    plan = DataPlan(
        max_seq_length=job.max_seq_length,
        overlong=job.overlong,
        assistant_only_loss=job.assistant_only_loss,
        packing=False,  # the trainer packs the rows
    )
    for chunk in _chunks(requests):
        reply, content = _ReplyHeader(), b""
        try:
            rows = chunk_rows(chunk, job.name)
            batch, counts = tokenize(
                rows, tokenizer, plan, name=job.name, vocabulary=job.vocabulary
            )
            content = arrow_stream(batch)
            reply = _ReplyHeader(size=len(content), counts=counts.as_data())
        except Exception:  # the trainer gets the same error and reports it
            content = b""
        replies.write(reply.model_dump_json().encode() + b"\n")
        replies.write(content)
        replies.flush()


def _chunks(requests: IO[bytes]) -> Iterator[Chunk]:
    while line := requests.readline():
        head = _RequestHeader.model_validate_json(line)
        content = requests.read(head.size)
        yield Chunk(first=head.first, content=content, kind=head.kind, format=head.format)


def main(folder: Path) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C and ends this process
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with replies
    # Importing transformers' tokenizers takes 1.1 s without torch and 2.5 s with it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # typeshed forbids None
    import transformers

    job = HelperJob.model_validate_json((folder / "job.json").read_bytes())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer_hash(tokenizer) != job.tokenizer:
        sys.stderr.write("the saved and loaded tokenizer differs from the original\n")
        return 1
    _serve(job, tokenizer, sys.stdin.buffer, replies)
    return 0


if __name__ == "__main__":
    die_with_supervisor()
    sys.exit(main(Path(sys.argv[1])))
