"""Files that cannot be right: each gets one clear sentence, and reading continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.formats import MAX_MESSAGE_CHARS
from tunesmith_worker.trainer.data.rows import read_rows
from tunesmith_worker.trainer.data.validate import validate_file

CHAT = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}'
BOM = b"\xef\xbb\xbf"


def complaint(path: Path, content: bytes, name: str = "rows.jsonl") -> tuple[int, str]:
    """Row and words of the first problem; training on the file fails with the same ones."""
    path = path / name
    path.write_bytes(content)
    found = validate_file(path, name)
    assert not found.ok
    problem = found.problems[0]
    with pytest.raises(DataError) as caught:
        read_rows(path)
    failure = caught.value.failure
    assert (failure.code, failure.category) == (ErrorCode.DATASET_INVALID, ErrorCategory.DATA)
    assert problem.message.removeprefix("the file ") in failure.message
    assert failure.hint
    return problem.row, problem.message


def test_one_bad_line_of_ten_thousand_is_named_by_its_line(tmp_path: Path) -> None:
    lines = [CHAT] * 10_000
    lines[4811] = '{"messages": ['
    row, words = complaint(tmp_path, "\n".join(lines).encode())
    assert row == 4812
    assert words.startswith("""not valid JSON at column 15: '{"messages": ['; a line must be""")


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    for name, content in {
        "rows.jsonl": CHAT,
        "rows.json": f"[{CHAT}]",
        "rows.csv": "question,answer\nHi,Yo\n",
    }.items():
        (tmp_path / name).write_bytes(BOM + content.encode())
        assert validate_file(tmp_path / name, name).ok, name


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be"])
def test_another_encoding_is_named(tmp_path: Path, name: str, coding: str) -> None:
    content = ("\ufeff" if coding == "utf-16-be" else "") + CHAT
    words = (1, "the file is UTF-16 text: save it as UTF-8")
    assert complaint(tmp_path, content.encode(coding), name) == words


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path, name: str) -> None:
    start = {"rows.json": b"[", "rows.csv": b"question,answer\na,"}.get(name, b"")
    assert complaint(tmp_path, start + b'{"text": "caf\xe9"}\n', name)[1].startswith(
        "not valid UTF-8"
    )


@pytest.mark.parametrize(
    ("start", "words"), [(b"\x1f\x8b\x08", "gzip"), (b"PK\x03\x04", "zip"), (b"(\xb5/\xfd", "zstd")]
)
def test_an_archive_is_to_be_unpacked_first(tmp_path: Path, start: bytes, words: str) -> None:
    assert words in complaint(tmp_path, start + bytes(100))[1]


@pytest.mark.parametrize("opening", ["[", '{"messages":', '{"text": "a", "other": ['])
def test_json_nested_twenty_thousand_deep_is_a_bad_row(tmp_path: Path, opening: str) -> None:
    content = f"{CHAT}\n{opening * 20_000}\n{CHAT}\n".encode()
    assert complaint(tmp_path, content) == (2, "not readable JSON: nested too deeply")
    assert complaint(tmp_path, b"[" * 20_000, "rows.json")[1].endswith("nested too deeply")


def test_a_number_of_five_thousand_digits_is_a_bad_row(tmp_path: Path) -> None:
    words = "not readable JSON: a number with more than 4,300 digits"
    row = '{"text": "a", "id": ' + "9" * 5000 + "}"
    assert complaint(tmp_path, f"{CHAT}\n{row}\n".encode()) == (2, words)
    assert complaint(tmp_path, f"[{row}]".encode(), "rows.json") == (1, words)


def test_a_line_of_a_megabyte_is_read_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "x" * 1_000_000}))
    assert validate_file(path, "rows.jsonl").ok
    assert len(read_rows(path).rows[0].text or "") == 1_000_000


@pytest.mark.parametrize(
    "row",
    [
        '{"' + "k" * 1_000_000 + '": 1}',
        '{"messages": [{"role": "' + "r" * 1_000_000 + '", "content": "a"}]}',
        '{"conversations": [{"from": "' + "r" * 1_000_000 + '", "value": "a"}]}',
    ],
    ids=["key", "role", "from"],
)
def test_a_complaint_never_quotes_a_megabyte(tmp_path: Path, row: str) -> None:
    assert len(complaint(tmp_path, row.encode())[1]) <= MAX_MESSAGE_CHARS


def test_rows_of_mixed_kinds_are_told_apart(tmp_path: Path) -> None:
    assert complaint(tmp_path, f'{CHAT}\n{{"text": "a"}}\n'.encode()) == (
        2, "is a 'text' row, but the file started with 'messages' rows",
    )  # fmt: skip


def test_columns_that_no_format_has_are_listed_with_those_that_are_needed(tmp_path: Path) -> None:
    words = complaint(tmp_path, b'{"mesages": []}\n')[1]
    assert words.startswith("has the columns 'mesages': needs one of 'messages'; 'conversations'")


def test_other_columns_are_ignored_even_ids_that_occur_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 7, "text": "a", "x": [1]}\n{"id": 7, "text": "b"}\n')
    assert validate_file(path, "rows.jsonl").ok
    assert [row.text for row in read_rows(path).rows] == ["a", "b"]


@pytest.mark.parametrize("header", ["Hello there,Hi", "question;answer", "1,2"])
def test_a_csv_file_without_a_header_is_told_what_to_put_there(tmp_path: Path, header: str) -> None:
    row, words = complaint(tmp_path, f"{header}\nHow are you,Fine\n".encode(), "rows.csv")
    assert row == 1
    assert words.startswith(f"the first line must name the columns, got '{header.split(',')[0]}'")
    assert "'question' + 'answer'" in words


def test_a_csv_header_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    words = "the first line names the column 'text' twice"
    assert complaint(tmp_path, b"text,text\na,b\n", "rows.csv") == (1, words)


def test_a_csv_quote_that_never_ends_is_named(tmp_path: Path) -> None:
    content = b'question,answer\na,b\n"c,d\ne,f\n'
    assert complaint(tmp_path, content, "rows.csv") == (2, "not valid CSV: unexpected end of data")


def test_a_tool_that_answers_before_it_was_asked_is_out_of_order(tmp_path: Path) -> None:
    turns = [
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    words = complaint(tmp_path, json.dumps({"messages": turns}).encode())[1]
    assert words == "messages has a tool message before the first assistant message"
