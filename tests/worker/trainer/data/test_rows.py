"""Row formats, good and bad, in every file kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tunesmith_schema import RowFormat
from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.rows import read_rows
from tunesmith_worker.trainer.data.validate import validate_file

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}

GOOD: dict[RowFormat, dict[str, Any]] = {  # Any: JSON
    RowFormat.MESSAGES: CHAT,
    RowFormat.PROMPT_COMPLETION: {"prompt": "Hi", "completion": "Yo"},
    RowFormat.QUESTION_ANSWER: {"question": "Hi", "answer": "Yo"},
    RowFormat.ALPACA: {"instruction": "Hi", "input": "", "output": "Yo"},
    RowFormat.SHAREGPT: SHAREGPT,
    RowFormat.TEXT: {"text": "Hi"},
}


def messages(*pairs: Any) -> dict[str, Any]:  # Any: JSON, right or wrong
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def problem(path: Path, row: Any, good: Any = None) -> str:  # Any: JSON, right or wrong
    """What is said about `row` as training data, written as the second line after a good one."""
    lines = [good or CHAT, row]
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    found = validate_file(path, "rows.jsonl")
    assert "supervised" not in found.usable_for
    assert found.rows == 2
    (bad,) = found.refused["supervised"].problems
    assert bad.row == 2
    return bad.message


@pytest.mark.parametrize("format", GOOD)
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "no_extension"])
def test_every_format_is_read_from_every_kind_of_file(
    tmp_path: Path, format: RowFormat, kind: str
) -> None:
    path = tmp_path / ("rows" if kind == "no_extension" else f"rows.{kind}")
    rows = [GOOD[format], GOOD[format] | {"id": 2}]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row | {"id": 1} for row in rows]), path)
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_bytes(b"\xef\xbb\xbf" + "\n\n".join(map(json.dumps, rows)).encode())
    found = validate_file(path, path.name)
    assert (found.ok, found.format, found.rows) == (True, format, 2)
    row = read_rows(path).rows[0]
    if format == RowFormat.TEXT:
        assert row.text == "Hi"
    elif format == RowFormat.PROMPT_COMPLETION:
        assert (row.prompt, row.text) == ("Hi", "Yo")
    else:
        assert [(m.role, m.content) for m in row.messages or ()] == [
            ("user", "Hi"),
            ("assistant", "Yo"),
        ]


def test_csv_is_read_with_quotes_and_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('question,answer\nHi,"Yo, ""you""\nthere"\n', encoding="utf-8-sig")
    assert read_rows(path).rows[0].text == 'Yo, "you"\nthere'


def test_a_csv_row_with_too_many_columns_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("question,answer\nHi,Yo\na,b,c\n")
    found = validate_file(path, "rows.csv")
    assert found.problems[0].row == 2
    assert found.problems[0].message == "has 3 columns, the header has 2"


def test_content_may_be_text_parts_and_weight_zero_means_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = messages(("user", parts), ("assistant", "x"), ("user", "c"), ("assistant", "y"))
    row["messages"][1]["weight"] = 0
    path.write_text(json.dumps(row))
    (read,) = read_rows(path).rows
    assert [m.content for m in read.messages or ()] == ["ab", "x", "c", "y"]
    assert [m.trained for m in read.messages or ()] == [True, False, True, True]


def test_only_the_completion_of_conversational_rows_is_trained(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    prompt = messages(("user", "a"), ("assistant", "b"), ("user", "c"))["messages"]
    row = {"prompt": prompt, "completion": messages(("assistant", "d"))["messages"]}
    path.write_text(json.dumps(row))
    (read,) = read_rows(path).rows
    assert [m.trained for m in read.messages or ()] == [False, False, False, True]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            '{"messages": [}',
            """not valid JSON at column 15: '{"messages": [}'; a line must be one complete""",
        ),
        ("[1]", "is a list, must be an object with named columns"),
        ({"foo": 1}, "has the columns 'foo': needs one of 'messages'; 'conversations'; "),
        ({"question": "a", "answer": None}, "answer is null"),
        ({"messages": []}, "messages must be a list with at least one message"),
        ({"messages": "Hi"}, "messages must be a list with at least one message"),
        ({"messages": ["Hi"]}, "messages[0] is a str, must be an object with role and content"),
        (
            messages(("user", "a"), ("system", "b"), ("asistant", "c")),
            "messages[2].role is 'asistant': must be one of system, user, assistant, tool",
        ),
        (messages(("user", "a")), "messages has no assistant turn to train on"),
        (
            messages(("user", "a"), ("assistant", "")),
            "messages[1].content is empty: an assistant turn needs text or tool_calls",
        ),
        (messages(("user", None), ("assistant", "b")), "messages[0].content is missing"),
        (
            messages(("user", 3), ("assistant", "b")),
            "messages[0].content is a int, must be a string",
        ),
        (
            messages(("user", [{"type": "image_url"}]), ("assistant", "b")),
            "messages[0].content[0] is a 'image_url' part: only text is supported",
        ),
        ({"text": "Hi"}, "is a 'text' row, but the file started with 'messages' rows"),
        (
            '{"messages": [{"role": "assistant", "content": "\\ud800"}]}',
            "messages[0].content is not valid Unicode: half of a surrogate pair at character 1",
        ),
    ],
)
def test_a_bad_row_is_named_in_precise_words(tmp_path: Path, row: Any, words: str) -> None:
    assert problem(tmp_path / "rows.jsonl", row).startswith(words)


@pytest.mark.parametrize(
    ("format", "row", "words"),
    [
        (RowFormat.QUESTION_ANSWER, {"question": "a", "answer": ""}, "answer is empty"),
        (RowFormat.QUESTION_ANSWER, {"question": "a", "answer": 7}, "answer is a int, must be"),
        (RowFormat.ALPACA, {"instruction": "", "output": "b"}, "instruction is empty"),
        (
            RowFormat.PROMPT_COMPLETION,
            {"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]},
            "prompt and completion must both be strings or both be lists of messages",
        ),
        (
            RowFormat.SHAREGPT,
            {"conversations": [{"from": "bot", "value": "b"}]},
            "conversations[0].from is 'bot': must be one of system, human, user, gpt",
        ),
        (
            RowFormat.SHAREGPT,
            {"conversations": [{"from": "human", "value": "b"}]},
            "conversations has no assistant turn to train on",
        ),
        (RowFormat.TEXT, {"text": ""}, "text is empty"),
    ],
)
def test_bad_rows_of_the_other_formats(
    tmp_path: Path, format: RowFormat, row: Any, words: str
) -> None:
    assert problem(tmp_path / "rows.jsonl", row, GOOD[format]).startswith(words)


def test_blank_lines_count_as_lines_but_not_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(CHAT).encode() + b"\n\n\xff\n")
    found = validate_file(path, "rows.jsonl")
    assert (found.rows, found.problems[0].row) == (2, 3)
    assert found.problems[0].message == "not valid UTF-8 at byte 1"


def test_an_empty_file_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n \n")
    found = validate_file(path, "rows.jsonl")
    assert not found.ok
    assert found.problems[0].message == "the file has no rows"
    with pytest.raises(DataError, match="has no rows"):
        read_rows(path)


def test_only_twenty_problems_are_listed_but_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(CHAT), *["{}"] * 30]))
    found = validate_file(path, "rows.jsonl")
    assert (len(found.problems), found.num_problems, found.rows) == (20, 30, 31)


def test_broken_arrays_and_parquet_files_say_where(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[\n{"text": "a"},\n{"text" "b"}]')
    message = validate_file(path, "rows.json").problems[0].message
    assert message.startswith(
        """the file is not a valid JSON array at line 3, column 9: '{"text" "b"}]'; an array is"""
    )
    path.write_bytes(b"PAR1 nonsense")
    message = validate_file(path, "rows.parquet").problems[0].message
    assert message.startswith("not readable as Parquet")


def test_training_stops_at_the_first_bad_row_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(CHAT) + "\n{}\n")
    with pytest.raises(DataError, match=r"rows.jsonl, row 2: has the columns \(none\)"):
        read_rows(path)
