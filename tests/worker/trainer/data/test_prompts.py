"""Prompts of a reinforcement run: formats, token ids, what is dropped, what a grader reads."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny_model import make_tiny_tokenizer
from tunesmith_schema import ErrorCategory, ErrorCode, PromptFormat, RunSpec
from tunesmith_worker.engine.model.base_model import Base
from tunesmith_worker.rundir.errors import DataError, RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.data.prompts import PromptCounts, prompt_rows, read_prompts
from tunesmith_worker.trainer.data.validate import validate_file

from . import templates

ASKED = {"messages": [{"role": "user", "content": "Hi"}], "answer": "Yo"}
ANSWERED = {"messages": [*ASKED["messages"], {"role": "assistant", "content": "Yo"}]}

GOOD: dict[PromptFormat, dict[str, Any]] = {  # Any: JSON
    PromptFormat.MESSAGES: ASKED,
    PromptFormat.PROMPT: {"prompt": "Hi", "completion": "Yo"},
    PromptFormat.INSTRUCTION: {"instruction": "Say", "input": "Hi", "output": "Yo"},
    PromptFormat.QUESTION: {"question": "Hi", "answer": "Yo", "level": 2},
}
ONE_TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TEXTS = {
    PromptFormat.MESSAGES: ONE_TURN.format("Hi"),
    PromptFormat.PROMPT: "Hi",
    PromptFormat.INSTRUCTION: ONE_TURN.format("Say\n\nHi"),
    PromptFormat.QUESTION: ONE_TURN.format("Hi"),
}


def written(path: Path, *rows: Any) -> Path:  # Any: JSON, or a line as it is
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def read(
    path: Path, tokenizer: Any = None, *, limit: int | None = None, refuse: bool = False
) -> tuple[tuple[PromptRow, ...], PromptCounts]:
    tokenizer = tokenizer or make_tiny_tokenizer()
    return prompt_rows(path, tokenizer, limit=limit, refuse=refuse, vocabulary=len(tokenizer))


@pytest.mark.parametrize("format", GOOD)
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "json"])
def test_every_format_asks_and_keeps_all_fields(
    tmp_path: Path, format: PromptFormat, kind: str
) -> None:
    path, row = tmp_path / f"rows.{kind}", GOOD[format] | {"id": 7}
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row, row]), path)
    elif kind == "json":
        path.write_text(json.dumps([row, row]))
    else:
        written(path, "", row, "", row)
    rows, counts = read(path)
    assert [one.text for one in rows] == [TEXTS[format]] * 2
    assert [one.number for one in rows] == ([2, 4] if kind == "jsonl" else [1, 2])
    assert rows[0].item == row
    ids = make_tiny_tokenizer()(TEXTS[format], add_special_tokens=False)["input_ids"]
    assert rows[0].prompt_ids == tuple(ids)
    assert (counts.rows, counts.kept, counts.tokens, counts.longest) == (
        2,
        2,
        2 * len(ids),
        len(ids),
    )
    assert counts.without_template == (2 if format == PromptFormat.PROMPT else 0)
    found = validate_file(path, path.name)
    assert (found.prompt_format, "reinforcement" in found.usable_for) == (format, True)


def test_a_prompt_may_be_a_conversation_with_tools(tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for t in tools or [] %}{{ t['function']['name'] }};{% endfor %}"
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    tools = [{"type": "function", "function": {"name": "add"}}]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    row = {"prompt": [*turns, {"role": "user", "content": "c"}], "tools": tools}
    rows, counts = read(written(tmp_path / "rows.jsonl", row), tokenizer)
    assert rows[0].text == "add;[user]a[assistant]b[user]c[assistant]"
    assert rows[0].item["tools"] == tools
    assert counts.without_template == 0


def test_there_is_one_bos_and_no_eos(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tiny_tokenizer()
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", bos), ("</s>", eos)]
    )
    tokenizer.chat_template = templates.LLAMA3
    chat, _ = read(written(tmp_path / "chat.jsonl", ASKED), tokenizer)
    without_template, _ = read(
        written(tmp_path / "without_template.jsonl", {"prompt": "Hi"}), tokenizer
    )
    assert chat[0].text.startswith("<s>")
    assert not without_template[0].text.startswith("<s>")
    for row in (chat[0], without_template[0]):
        assert (row.prompt_ids[0], row.prompt_ids.count(bos)) == (bos, 1)
        assert row.prompt_ids[-1] != eos


def test_without_a_template_questions_are_plain_text_and_conversations_are_refused(
    tmp_path: Path,
) -> None:
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = None
    rows, counts = read(written(tmp_path / "q.jsonl", GOOD[PromptFormat.QUESTION]), tokenizer)
    assert rows[0].text == "Hi\n"
    assert counts.without_template == 0, "there is no template that they could have missed"
    rows, _ = read(written(tmp_path / "i.jsonl", GOOD[PromptFormat.INSTRUCTION]), tokenizer)
    assert rows[0].text.endswith("### Instruction:\nSay\n\n### Input:\nHi\n\n### Response:\n")
    with pytest.raises(RunError) as refused:
        read(written(tmp_path / "m.jsonl", ASKED), tokenizer)
    assert refused.value.failure.code == ErrorCode.TEMPLATE_MISSING


def test_what_a_template_refuses_is_a_bad_row(tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = templates.GEMMA
    row = {"messages": [{"role": "system", "content": "s"}, *ASKED["messages"]]}
    with pytest.raises(DataError, match="row 2: the model's chat template rejects"):
        read(written(tmp_path / "rows.jsonl", ASKED, row), tokenizer)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ANSWERED, "messages ends with an assistant turn, so there is nothing to generate"),
        ({"prompt": ANSWERED["messages"]}, "prompt ends with an assistant turn"),
        ({"messages": []}, "messages must be a list with at least one message"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages has a tool message before"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": 3}, "prompt is a int, must be a string"),
        ({"prompt": None}, "prompt is null"),
        ({"answer": "b"}, "has the columns 'answer': needs one of 'messages', 'prompt'"),
        ([1], "is a list, must be an object"),
        ('{"prompt": "a", "x": {"y": "\\ud800"}}', "x.y is not valid Unicode"),
        ("{", "not valid JSON"),
    ],
)
def test_a_bad_row_is_named_in_precise_words(tmp_path: Path, row: Any, words: str) -> None:
    path = written(tmp_path / "rows.jsonl", {"prompt": "a"} if "prompt" in row else ASKED, row)
    if words.startswith("prompt ends"):
        path = written(path, {"prompt": "a"}, row)
    with pytest.raises(DataError) as refused:
        read(path)
    assert f"rows.jsonl, row 2: {words}" in str(refused.value)
    found = validate_file(path, path.name)
    assert "reinforcement" not in found.usable_for
    assert found.refused["reinforcement"].problems[0].message.startswith(words)


def test_a_file_keeps_to_one_format(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", {"question": "a"}, {"instruction": "b"})
    with pytest.raises(DataError, match="is a 'instruction' row, but the file started with 'que"):
        read(path)


def test_what_parquet_holds_becomes_json(tmp_path: Path) -> None:
    row = {"prompt": "a", "day": date(2026, 1, 2), "bits": b"\x00", "part": {"x": float("nan")}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    rows, _ = read(tmp_path / "rows.parquet")
    assert rows[0].item == {"prompt": "a", "day": "2026-01-02", "part": {"x": None}}
    json.dumps(rows[0].item, allow_nan=False)


LONG = {"question": "Hi " * 50}


def test_long_prompts_are_dropped_and_counted_or_refused_but_never_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", GOOD[PromptFormat.QUESTION], LONG, LONG)
    whole, _ = read(path)
    limit = len(whole[0].prompt_ids)
    rows, counts = read(path, limit=limit)
    assert rows == whole[:1]
    assert (counts.rows, counts.kept, counts.dropped_too_long) == (3, 1, 2)
    assert counts.longest == limit
    (loss,) = counts.warnings(path.name, limit)
    assert loss.startswith(
        f"rows.jsonl: 2 of 3 prompts dropped, longer than the prompt limit of {limit}"
    )
    with pytest.raises(DataError, match=f"row 2 has {len(whole[1].prompt_ids)} tokens") as refused:
        read(path, limit=limit, refuse=True)
    assert refused.value.failure.code == ErrorCode.ROW_TOO_LONG
    with pytest.raises(DataError, match=f"all 3 prompts were dropped, .* of {limit - 1} ") as none:
        read(path, limit=limit - 1)
    assert none.value.failure.code == ErrorCode.ROW_TOO_LONG
    with pytest.raises(DataError, match="has no rows"):
        read(written(tmp_path / "none.jsonl", ""))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer()
    with pytest.raises(RunError, match="model and tokenizer do not belong together"):
        prompt_rows(
            written(tmp_path / "rows.jsonl", ASKED),
            tokenizer,
            limit=None,
            refuse=False,
            vocabulary=100,
        )


def run_of(tmp_path: Path, grader: dict[str, Any], *rows: Any, **changes: Any) -> Any:  # Any: JSON
    """What `read_prompts` gives for these rows, and the log it wrote."""
    run = RunDirectory(tmp_path)
    (tmp_path / "data").mkdir(exist_ok=True)
    written(tmp_path / "data" / "train.jsonl", *rows)
    spec = RunSpec.model_validate(
        {
            "job_id": "ftjob-1",
            "attempt": 1,
            "model": "m",
            "model_path": "m",
            "training_file": "data/train.jsonl",
            "method": "reinforcement",
            "grader": grader,
            **changes,
        }
    )
    tokenizer = make_tiny_tokenizer()

    class Model:
        def get_input_embeddings(self) -> Any:
            return type("Table", (), {"num_embeddings": len(tokenizer)})

    base = Base(model=Model(), tokenizer=tokenizer, context=512)
    return read_prompts(run, spec, base, EventLog(run.events), max_prompt_tokens=40)


def grader(reference: str, **changes: Any) -> dict[str, Any]:
    return {"type": "math_answer", "reference": reference, **changes}


def test_both_files_are_read_and_what_was_lost_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    longer = {"question": "one two three four", "answer": "x"}
    written(tmp_path / "data" / "valid.jsonl", longer)
    row = GOOD[PromptFormat.QUESTION]
    found = run_of(
        tmp_path, grader("{{item.answer}}"), row, LONG, validation_file="data/valid.jsonl"
    )
    assert [one.item for one in found.rows] == [row]
    assert [one.item for one in found.validation] == [longer]
    assert found.longest == len(found.validation[0].prompt_ids) > len(found.rows[0].prompt_ids)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events[0]["data"]["dropped_too_long"] == 1
    assert (events[1]["level"], "1 of 2 prompts dropped" in events[1]["message"]) == ("warn", True)


@pytest.mark.parametrize(
    ("template", "row", "said"),
    [
        (
            "{{item.answr}}",
            {},
            "which is missing: the row has question; the same",
        ),
        ("{{ item.a.b }}", {"a": {"c": 1}}, "reads {{item.a.b}}"),
        ("{{item.list[1]}}", {"list": [1]}, "reads {{item.list[1]}}"),
    ],
)
def test_a_grader_that_reads_what_a_row_has_not_is_found_before_training(
    tmp_path: Path, template: str, row: dict[str, Any], said: str
) -> None:
    good = {"question": "a", "answer": "4", "answr": 4, "a": {"b": 1}, "list": [1, 2]}
    run_of(tmp_path, grader(template), good)
    bad = {"question": "a", **row}
    with pytest.raises(RunError) as refused:
        run_of(tmp_path, grader(template), good, bad, training_file_name="sums.jsonl")
    failure = refused.value.failure
    assert (failure.category, failure.code) == (ErrorCategory.GRADER, ErrorCode.GRADER_INVALID)
    assert failure.message.startswith("sums.jsonl, row 2: ")
    assert said in failure.message
    assert failure.message.endswith("the same in 1 of 2 rows.")


def test_every_grader_of_a_multi_is_looked_at(tmp_path: Path) -> None:
    both = {
        "type": "multi",
        "graders": {"right": grader("{{item.answer}}"), "other": grader("{{item.sum}}")},
        "calculate_output": "right + other",
    }
    with pytest.raises(RunError, match=r"the grader reads \{\{item.sum\}\}"):
        run_of(tmp_path, both, {"question": "a", "answer": "4"})


def test_uploads_are_judged_for_each_method(tmp_path: Path) -> None:
    def judged(*rows: Any) -> tuple[bool, list[str]]:
        found = validate_file(written(tmp_path / "rows.jsonl", *rows), "rows.jsonl")
        return found.ok, [str(one) for one in found.usable_for]

    assert judged(GOOD[PromptFormat.QUESTION]) == (True, ["supervised", "reinforcement"])
    assert judged({"question": "a"}) == (True, ["reinforcement"])
    assert judged(ASKED) == (True, ["reinforcement"])
    assert judged(ANSWERED) == (True, ["supervised"])
    assert judged({"text": "a"}) == (True, ["supervised"])
    assert judged(ASKED, "{") == (False, [])
    found = validate_file(tmp_path / "rows.jsonl", "rows.jsonl")
    assert found.num_problems == 1, "the prompts' one bad row, not that nothing is answered"
    assert judged(ANSWERED, "{") == (False, [])
    found = validate_file(tmp_path / "rows.jsonl", "rows.jsonl")
    assert [one.row for one in found.problems] == [2]
    assert {k: v.num_problems for k, v in found.refused.items()} == {
        "supervised": 1,
        "reinforcement": 2,
    }


def test_the_shared_prompts_are_usable(shared_data: Path) -> None:
    path = shared_data / "synthetic" / "heldout.jsonl"
    rows, counts = read(path)
    assert (counts.rows, counts.kept) == (500, 500)
    assert {"question", "answer", "solution", "level"} <= rows[0].item.keys()
