"""Files: what OpenAI's `files` resource sends and answers, and what validation found in one."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from .base import Request, Response
from .early_stopping import MethodName


class FilePurpose(StrEnum):
    """What a file may be uploaded for (OpenAI's request values)."""

    ASSISTANTS = "assistants"
    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    """A data set: validated right after the upload."""
    VISION = "vision"
    USER_DATA = "user_data"
    EVALS = "evals"


class RowFormat(StrEnum):
    """The row shapes that training accepts."""

    MESSAGES = "messages"
    """`{"messages": [{"role", "content"}, ...]}`: OpenAI's chat rows."""
    PROMPT_COMPLETION = "prompt_completion"
    """`{"prompt", "completion"}`, strings or lists of messages."""
    QUESTION_ANSWER = "question_answer"
    """`{"question", "answer"}`."""
    ALPACA = "alpaca"
    """`{"instruction", "input", "output"}`, `input` optional."""
    SHAREGPT = "sharegpt"
    """`{"conversations": [{"from", "value"}, ...]}`."""
    TEXT = "text"
    """`{"text"}`: plain text, every token trained."""


class PromptFormat(StrEnum):
    """The row shapes that reinforcement accepts. Every further field is there for the grader."""

    MESSAGES = "messages"
    """`{"messages": [...]}` whose last turn is not the assistant's: OpenAI's."""
    PROMPT = "prompt"
    """`{"prompt"}`, a string or a list of messages."""
    INSTRUCTION = "instruction"
    """`{"instruction", "input"}`, `input` optional."""
    QUESTION = "question"
    """`{"question"}`."""


class RowProblem(Response):
    """A row that cannot be trained on."""

    row: int
    """Counted from 1; a line number in JSONL, a record number elsewhere."""
    message: str


class BadRows(Response):
    """What keeps a method from using a file."""

    problems: list[RowProblem] = Field(max_length=20)
    """The first bad rows, with what is wrong."""
    num_problems: int
    """All bad rows."""

    def summary(self) -> str:
        """The first, and how many more there are."""
        first = self.problems[0] if self.problems else None
        what = "no usable rows"
        if first:  # row 0: the file as a whole
            what = f"row {first.row}: {first.message}" if first.row else first.message
        more = f" (and {self.num_problems - 1} more)" if self.num_problems > 1 else ""
        return what + more


class FileValidation(Request):
    """What the light worker found in a data set. It is read before anybody says what for."""

    ok: bool
    """Whether it can be trained on, by one method at least."""
    usable_for: list[MethodName | str] = Field(default_factory=list)
    """The methods that can use every row; a newer server may know more."""
    refused: dict[MethodName | str, BadRows] = Field(default_factory=dict)
    """For each other method, the rows that it cannot use, and why."""
    format: RowFormat | None = None
    """Shape of the rows for supervised training; null when none was recognised."""
    prompt_format: PromptFormat | None = None
    """Shape of the rows for reinforcement; null when none was recognised."""
    rows: int = Field(default=0, ge=0)
    """Rows read, good ones and bad."""
    problems: list[RowProblem] = Field(default_factory=list, max_length=20)
    """The first bad rows of a file that no method can use, with what is wrong: those of supervised
    training, unless every row is bad for that one alone."""
    num_problems: int = Field(default=0, ge=0)
    """All bad rows."""

    def why_not(self, method: MethodName) -> str | None:
        """Why it cannot be used by `method`; None: it can."""
        once = ["supervised"] if self.ok else []  # read when there was no other method
        if method in (self.usable_for or once):
            return None
        if method in self.refused:
            return self.refused[method].summary()
        if not self.ok:
            return BadRows(problems=self.problems, num_problems=self.num_problems).summary()
        return "it was uploaded before files were read for that: upload it again"


class FileObject(Response):
    """An uploaded file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    """Unix seconds."""
    expires_at: int | None = None
    """Unix seconds; absent when the file stays until deleted."""
    filename: str
    purpose: str
    """What it was uploaded for."""
    status: Literal["uploaded", "processed", "error"] = "uploaded"
    """`uploaded` until a light worker has read it."""
    status_details: str | None = None
    """Why `status` is `error`."""
    sha256: str | None = None
    """Of the content, hexadecimal."""
    validation: FileValidation | None = None
    """What the light worker found; null until it has looked."""


class FileDeleted(Response):
    """Answer to the deletion of a file."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
