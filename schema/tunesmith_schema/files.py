"""Objects of OpenAI's `files` API, and the result of validating a file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from .base import Request, Response
from .early_stopping import MethodName

MAX_PROBLEM = 1000
"""Maximum length of `RowProblem.message`, in characters."""


class FilePurpose(StrEnum):
    """Purpose of an uploaded file: the values that OpenAI allows in an upload request."""

    ASSISTANTS = "assistants"
    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    """A data set; validated right after the upload."""
    VISION = "vision"
    USER_DATA = "user_data"
    EVALS = "evals"


class RowFormat(StrEnum):
    """Row formats of supervised training."""

    MESSAGES = "messages"
    """`{"messages": [{"role", "content"}, ...]}`: OpenAI's chat format."""
    PROMPT_COMPLETION = "prompt_completion"
    """`{"prompt", "completion"}`, each a string or a list of messages."""
    QUESTION_ANSWER = "question_answer"
    """`{"question", "answer"}`, each a string."""
    ALPACA = "alpaca"
    """`{"instruction", "input", "output"}`; `input` is optional."""
    SHAREGPT = "sharegpt"
    """`{"conversations": [{"from", "value"}, ...]}`."""
    TEXT = "text"
    """`{"text"}`: plain text; the loss includes every token."""


class PromptFormat(StrEnum):
    """Row formats of reinforcement tuning; the grader receives all other fields of a row."""

    MESSAGES = "messages"
    """`{"messages": [...]}`: OpenAI's format; the last message must not be the assistant's."""
    PROMPT = "prompt"
    """`{"prompt"}`, a string or a list of messages."""
    INSTRUCTION = "instruction"
    """`{"instruction", "input"}`; `input` is optional."""
    QUESTION = "question"
    """`{"question"}`."""


class RowProblem(Response):
    """A row that cannot be used for training, with the reason."""

    row: int
    """Row number, from 1. In JSONL, the row number is the line number; in other formats, it is the
    record number."""
    message: Annotated[str, AfterValidator(lambda text: text[:MAX_PROBLEM])]
    """Reason why the row cannot be used, cut after `MAX_PROBLEM` characters."""


class BadRows(Response):
    """Bad rows that make a file unusable for a training method."""

    problems: list[RowProblem] = Field(max_length=20)
    """First bad rows and their problems."""
    num_problems: int
    """Number of bad rows."""

    def summary(self) -> str:
        """Return the first problem and the number of further problems."""
        first = self.problems[0] if self.problems else None
        text = "no usable rows"
        if first:  # row 0: the whole file
            text = f"row {first.row}: {first.message}" if first.row else first.message
        more = f" (and {self.num_problems - 1} more)" if self.num_problems > 1 else ""
        return text + more


class FileValidation(Request):
    """Result of validating a data set for every training method."""

    ok: bool
    """True if at least one method can use the file."""
    usable_for: list[MethodName | str] = Field(default_factory=list)
    """Methods that can use every row; a newer server may list a method that this version lacks."""
    refused: dict[MethodName | str, BadRows] = Field(default_factory=dict)
    """Bad rows for each method that cannot use the file."""
    format: RowFormat | None = None
    """Row format for supervised training; null if not recognised."""
    prompt_format: PromptFormat | None = None
    """Row format for reinforcement; null if not recognised."""
    rows: int = Field(default=0, ge=0)
    """Number of all rows, good and bad."""
    problems: list[RowProblem] = Field(default_factory=list, max_length=20)
    """First bad rows of a file that no method can use. Usually, these are the rows that supervised
    training cannot use. If supervised training can use no row but reinforcement can use some, these
    are the rows that reinforcement cannot use."""
    num_problems: int = Field(default=0, ge=0)
    """Number of bad rows."""

    def unusable_reason(self, method: MethodName) -> str | None:
        """Return the reason why `method` cannot use the file, or None if it can."""
        # Files validated before reinforcement existed have no `usable_for`.
        default = ["supervised"] if self.ok else []
        if method in (self.usable_for or default):
            return None
        if method in self.refused:
            return self.refused[method].summary()
        if not self.ok:
            return BadRows(problems=self.problems, num_problems=self.num_problems).summary()
        return f"the file was validated before method '{method}' existed; upload the file again"


class FileObject(Response):
    """An uploaded file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    """Time of creation, Unix seconds."""
    expires_at: int | None = None
    """Expiry time, Unix seconds; absent if the file does not expire."""
    filename: str
    purpose: str
    """Purpose given at the upload."""
    status: Literal["uploaded", "processed", "error"] = "uploaded"
    """State of the file: `uploaded` until the file has been validated, then `processed`, or `error`
    if no method can use the file."""
    status_details: str | None = None
    """Reason if `status` is `error`."""
    sha256: str | None = None
    """SHA-256 of the content, hexadecimal."""
    validation: FileValidation | None = None
    """Result of the validation; null until the file has been validated."""
    num_uses: int | None = None
    """Number of jobs and evaluations that use the file; only in a list with `include=num_uses`."""


MAX_ROWS_PAGE = 100
"""Maximum number of rows in one page of a file's rows."""


class DataRow(Response):
    """A line of a JSONL file."""

    id: str
    """Position after the row, as `LINES-BYTES`: the number of lines and the number of bytes before
    this position. The id is also a cursor for the parameter `after`."""
    object: Literal["file.row"] = "file.row"
    line: int
    """Line number, from 1. The line number equals the row number in the result of the
    validation."""
    data: Any = None  # Any: JSON
    """JSON value of the line; null if `problem` is set."""
    text: str | None = None
    """Start of a line that has a problem."""
    problem: str | None = None
    """Reason why `data` is missing: the line is not JSON, or it is too long to be shown."""


class FileUse(Response):
    """A job or an evaluation that uses a file."""

    id: str
    object: Literal["file.use"] = "file.use"
    kind: Literal["fine_tuning.job", "evaluation"] | str
    """Kind of the object with this id."""
    name: str | None = None
    """Name of the job, or the suffix if the job has no name. Null for an evaluation, and for a job
    without name and suffix."""
    role: Literal["training_file", "validation_file", "file"] | str
    """Name of the field with the file's id, in the job or the evaluation."""
    created_at: int
    """Time of creation, Unix seconds."""
    status: str
    """State of the job, or status of the evaluation."""
    model: str
    """Model that the job or the evaluation was created with."""


class FileDeleted(Response):
    """Confirmation that a file was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
