"""`overlong: "truncate"`: what the cut removes is counted and named, and is no other fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

from .test_tokens import QA, tokenized

LONG_ANSWER = {"question": "hi", "answer": "word " * 60}
LONG_QUESTION = {"question": "word " * 60, "answer": "yes"}
TURNS = {
    "messages": [
        {"role": role, "content": text}
        for role, text in (
            ("user", "hi"),
            ("assistant", "hello there"),
            ("user", "word " * 60),
            ("assistant", "yes"),
        )
    ]
}


def test_each_effect_of_the_cut_has_its_own_count_and_sentence() -> None:
    tokenizer = make_tiny_tokenizer()
    records = (QA, LONG_ANSWER, LONG_QUESTION, TURNS)
    counts = tokenized(tokenizer, *records, max_seq_length=60, overlong="truncate").counts
    assert (counts.rows, counts.kept, counts.truncated) == (4, 3, 3)
    assert (counts.answers_cut, counts.dropped_truncated) == (2, 1)
    assert (counts.dropped_untrainable, counts.without_end_token) == (0, 0)
    said = [*counts.warnings("train.jsonl", 60)]
    assert len(said) == 3
    assert "in 2 examples, the cut to max_seq_length=60 removes the end of an answer" in said[1]
    assert "1 rows dropped, because the cut to max_seq_length=60 removes the whole" in said[2]


@pytest.mark.parametrize("only", [True, False], ids=["answers", "all tokens"])
def test_cut_answers_are_not_taken_for_a_wrong_template(make_run: MakeRun, only: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "question": f"Say {a} and {b}: " + "hello " * 8,
            "answer": " ".join(f"{a * 100 + b * 7 + n}" for n in range(60)),
        }
        for a in range(4)
        for b in range(4)
    ]
    recipe = {
        "max_steps": 1,
        "max_seq_length": 60,
        "overlong": "truncate",
        "assistant_only_loss": only,
        "self_check": True,
    }
    run = make_run(rows, recipe=recipe)
    assert main(run) == 0, read_result(run).error
    (checks,) = [d["checks"] for d in event_data(run, EventKind.MESSAGE) if "checks" in d]
    assert checks["answers"]["state"] == ("passed" if only else "not_applicable")
    said = [event.message for event in read_events(run) if event.level == "warn"]
    assert [text for text in said if "16 examples, the cut" in text], said
    assert not [text for text in said if "special token" in text]
