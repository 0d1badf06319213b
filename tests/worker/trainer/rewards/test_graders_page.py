"""The examples of docs/reference/graders.md are valid graders and give the scores on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tunesmith_worker.trainer.rewards import Grading, LocalReward, missing_fields

from .rows import Row, grader, sample

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "graders.md").read_text()
EXAMPLES = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
ITEM = {"answer": "5", "summary": "the cat sat", "city": "Bern"}
GOOD = {
    "string_check": "5",
    "text_similarity": "The cat sat.",
    "math_answer": "so it is 5",
    "regex": "<think>well</think> 5",
    "json_schema": '```json\n{"city": "Bern"}\n```',
    "length": "short",
    "multi": "so\n#### 5",
}


def test_every_type_has_an_example() -> None:
    assert [example["type"] for example in EXAMPLES] == list(GOOD)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["type"])
def test_an_example_scores(example: dict[str, Any]) -> None:  # Any: JSON
    spec = grader(**example)
    assert missing_fields(spec, [ITEM]) == []
    with Grading(spec) as grading:
        step = grading.begin([Row(ITEM), Row(ITEM)])
        step.add(0, sample(GOOD[example["type"]]), [])
        step.add(1, sample("nothing of it", tokens=500), [])
        good, bad = (graded.rewards[0] for graded in step.finish())
    assert (good, bad) == ((1.1, -0.1) if example["type"] == "multi" else (1.0, 0.0))


def test_the_function_is_a_reward(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/reinforcement.md").read_text()
    (source,) = re.findall(r"cat > rewards.py <<'END'\n(.*?)END", page, re.DOTALL)
    file = tmp_path / "rewards_of_the_page.py"
    file.write_text(source)
    with Grading(None, [LocalReward.load(f"{file}:brief=0.5")]) as grading:
        step = grading.begin([Row(ITEM), Row({"answer": None})])
        step.add(0, sample("short"), [])
        step.add(1, sample("x" * 300), [])
        assert [graded.rewards for graded in step.finish()] == [(1.0,), (0.0,)]
