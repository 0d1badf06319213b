"""Sound data that is not one short answer a row is not taken for a wrong template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import make_tiny_model, make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main
from tunesmith_worker.trainer.selfcheck import labels

Json = Any  # Any: rows of a data file
Rows = list[dict[str, Json]]

TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen's: a call is the template's JSON, and its text may be null."""


def turns(*contents: str) -> dict[str, Json]:
    roles = ("user", "assistant") * len(contents)
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


def with_a_call(number: int, *, answered: bool) -> dict[str, Json]:
    arguments = json.dumps({"city": f"town {number}", "unit": "celsius"})
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": f"c{number}", "type": "function", "function": function}
    messages: list[Json] = [
        {"role": "user", "content": f"How is the weather in town {number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    if answered:
        messages.append({"role": "tool", "content": "18 degrees", "tool_call_id": f"c{number}"})
        messages.append({"role": "assistant", "content": "It is 18 degrees."})
    return {"messages": messages}


LONG: Rows = [
    {"question": "Why? " * 80, "answer": f"Longer words {n}, of which none is met again."}
    for n in range(labels.FILE_ROWS + 6)
]
DATA: dict[str, Rows] = {
    "the first rows are too long and dropped": [*LONG, *QUESTIONS],
    "tool calls, then an answer": [with_a_call(n, answered=True) for n in range(12)],
    "tool calls alone, then text": [
        *(with_a_call(n, answered=False) for n in range(12)),
        *(turns("hello there", "The capital of France is Paris.") for _ in range(12)),
    ],
    "turns of one digit": [turns("3 + 4?", "7", "5 + 1?", "6") for _ in range(12)],
}


@pytest.fixture(scope="module")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("tools") / "model")
    make_tiny_tokenizer(chat_template=TOOLS).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("data", DATA)
def test_answers_are_found(make_run: MakeRun, tool_model: Path, data: str) -> None:
    recipe = {"max_steps": 1, "max_seq_length": 160}
    run = make_run(DATA[data], recipe=recipe, model_path=str(tool_model))
    assert main(run) == 0, read_result(run).error
    assert _answers(run) == "passed"


def test_too_many_dropped_rows_are_no_alarm(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "MOST_ROWS", labels.FILE_ROWS)
    run = make_run([*LONG, *QUESTIONS], recipe={"max_steps": 1, "max_seq_length": 160})
    assert main(run) == 0, read_result(run).error
    assert _answers(run) == "not_applicable"


def test_rows_of_two_tokens_ask_nothing_of_queries_and_keys(make_run: MakeRun) -> None:
    run = make_run([{"text": "a"} for _ in range(12)], recipe={"max_steps": 1})
    assert main(run) == 0, read_result(run).error
    assert _answers(run) == "not_applicable"


def _answers(run: Path) -> Json:
    (told,) = (data for data in event_data(run, EventKind.MESSAGE) if "checks" in data)
    return told["checks"]["answers"]["state"]
