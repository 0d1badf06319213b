"""Reward functions of one's own, called as TRL calls them."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tunesmith_schema import RunResult, RunSpec
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.trainer import run
from tunesmith_worker.trainer.rewards import Graded, Grading, LocalReward

from .rows import Row, grader, sample

# Any: what TRL gives and takes
ASKED: Any = [{"role": "user", "content": "2 + 2?"}]


def step(
    *functions: Any, rows: list[Row] | None = None, spec: Any = None
) -> tuple[list[Graded], Any]:
    rows = rows or [Row({"prompt": "2 + 2 ="}), Row({"prompt": "3 + 3 ="})]
    local = [LocalReward(name=f"f{place}", function=f) for place, f in enumerate(functions)]
    with Grading(spec, local) as grading:
        round_ = grading.begin(rows, trainer_state="the state")
        for place in range(len(rows)):
            round_.add(place, sample(f"answer {place}"), [place, 9])
        return round_.finish(), round_


def failure(*functions: Any) -> str:
    with pytest.raises(RunError) as caught:
        step(*functions)
    assert (caught.value.failure.category, caught.value.failure.code) == ("grader", "grader_failed")
    return f"{caught.value.failure.message} | {caught.value.failure.hint}"


def test_a_function_is_given_what_trl_gives() -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: Any, completions: Any, completion_ids: Any, **given: Any) -> list[float]:
        seen.update(given, prompts=prompts, completions=completions, completion_ids=completion_ids)
        return [0.5, 1]

    rows = [Row({"messages": ASKED, "answer": 4, "x": [1]}), Row({"messages": ASKED, "answer": 6})]
    graded, _ = step(reward, rows=rows)
    assert [one.rewards for one in graded] == [(0.5,), (1.0,)]
    assert seen["prompts"] == [ASKED, ASKED]
    assert seen["completions"] == [
        [{"role": "assistant", "content": "answer 0"}],
        [{"role": "assistant", "content": "answer 1"}],
    ]
    assert seen["completion_ids"] == [[0, 9], [1, 9]]
    assert seen["answer"] == [4, 6]
    assert seen["x"] == [[1], None]
    assert seen["trainer_state"] == "the state"
    expected = {"prompts", "completions", "completion_ids", "answer", "x"}
    assert set(seen) == expected | {"trainer_state", "log_extra", "log_metric"}


def test_the_arguments_are_those_of_trl() -> None:
    """By name, from TRL's own source: a new one there fails here."""
    trl = importlib.util.find_spec("trl")  # not imported: that takes seconds
    assert trl is not None
    assert trl.origin is not None
    source = (Path(trl.origin).parent / "trainer" / "grpo_trainer.py").read_text()
    named = set(re.findall(r'(?<!row_)reward_kwargs\["(\w+)"\]', source))
    assert named == {"trainer_state", "log_extra", "log_metric", "environments"}
    assert "prompts=prompts, completions=completions, completion_ids=completion_ids_list" in source
    assert '["prompt", "completion", "completion_ids"]' in source


def test_plain_prompts_and_completions_are_texts() -> None:
    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        assert prompts == ["2 + 2 =", "the prompt"]
        return [float(len(text)) for text in completions]

    graded, _ = step(reward, rows=[Row({"prompt": "2 + 2 ="}), Row({"question": "?"})])
    assert [one.rewards for one in graded] == [(8.0,), (8.0,)]


def test_functions_stand_beside_the_grader_and_wait_together() -> None:
    met = asyncio.Event()

    async def first(**_: Any) -> list[float]:
        await asyncio.wait_for(met.wait(), 20)
        return [1.0, 2.0]

    async def second(**_: Any) -> list[float]:
        met.set()
        return [3.0, 4.0]

    def third(**_: Any) -> list[float | None]:
        return [None, math.nan]

    spec = grader("regex", name="one", pattern="1$")
    graded, _ = step(first, second, third, spec=spec)
    assert [one.rewards for one in graded] == [(0.0, 1.0, 3.0, None), (1.0, 2.0, 4.0, None)]
    assert dict(graded[0].scores) == {"one": 0.0, "f0": 1.0, "f1": 3.0, "f2": None}


def test_an_object_that_is_called_may_be_async() -> None:
    class Judge:
        async def __call__(self, **_: Any) -> list[float]:
            return [1.0, 0.0]

    graded, _ = step(Judge())
    assert [one.rewards for one in graded] == [(1.0,), (0.0,)]


def test_what_a_function_logs_is_kept() -> None:
    def reward(log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
        log_extra("verdict", ["good", "bad"])
        log_metric("accuracy", 1.0)
        log_metric("accuracy", 0.0)
        return [1.0, 0.0]

    _, round_ = step(reward)
    assert dict(round_.extras) == {"verdict": ["good", "bad"]}
    assert round_.metrics == {"accuracy": 0.5}


def test_a_wrong_answer_is_named() -> None:
    assert "'f0' returned 1 rewards, but 2 were expected" in failure(lambda **_: [1.0])
    assert "returned int, not a list" in failure(lambda **_: 3)
    assert "returned 'x' for completion 1, not a finite number" in failure(lambda **_: [1.0, "x"])
    assert "returned inf for completion 0" in failure(lambda **_: [math.inf, 1.0])
    assert "returned [1] for completion 0" in failure(lambda **_: [[1], 1.0])


def test_a_function_that_raises_is_named_with_its_line() -> None:
    def reward(**_: Any) -> list[float]:
        raise KeyError("gone")

    line = inspect.getsourcelines(reward)[1] + 1
    assert f"Reward function 'f0' raised KeyError in line {line}: 'gone'" in failure(reward)

    async def later(**_: Any) -> list[float]:
        return [1 / 0]

    assert "raised ZeroDivisionError in line" in failure(later)

    def leaving(**_: Any) -> list[float]:
        raise SystemExit(3)

    assert "raised SystemExit in line" in failure(leaving)

    class Broken:
        def __call__(self, **_: Any) -> list[float]:
            raise OSError("no network")

    assert "raised OSError in line" in failure(Broken())
    assert "raised TypeError: " in failure(functools.partial(int, "x"))


def test_a_signature_that_takes_too_little_is_explained() -> None:
    def reward(prompts: Any, completions: Any) -> list[float]:
        return [1.0, 1.0]

    assert "Add **kwargs to its signature" in failure(reward)


FILE = """
import beside

def good(completions, **kwargs):
    return [beside.VALUE] * len(completions)

async def later(completions, **kwargs):
    return [0.0] * len(completions)

NOT = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))  # and sys.path as it was, afterwards
    (tmp_path / "beside.py").write_text("VALUE = 0.25\n")
    path = tmp_path / "my_rewards.py"
    path.write_text(FILE)
    return path


def test_functions_are_loaded_from_a_file_with_their_weights(file: Path) -> None:
    good, later = LocalReward.load(f"{file}:good=0.5"), LocalReward.load(f"{file}:later")
    assert (good.name, good.weight, good.is_async) == ("good", 0.5, False)
    assert (later.name, later.weight, later.is_async) == ("later", 1.0, True)
    with Grading(None, [good, later]) as grading:
        assert (grading.columns, grading.weights) == (("good", "later"), (0.5, 1.0))
        round_ = grading.begin([Row()])
        round_.add(0, sample("x"), [1])
        assert round_.finish()[0].rewards == (0.25, 0.0)


def test_what_cannot_be_loaded_is_explained(file: Path) -> None:
    (file.parent / "broken_rewards.py").write_text("import nothing_of_that_name\n")
    (file.parent / "leaving_rewards.py").write_text("raise SystemExit(0)\n")
    for text, says in (
        ("rewards.py", "must be FILE.py:NAME or FILE.py:NAME=WEIGHT"),
        (f"{file}:good=x", "the weight 'x' is not a finite number"),
        (f"{file}:good=", "the weight '' is not a finite number"),
        (f"{file}:good=nan", "the weight 'nan' is not a finite number"),
        (f"{file}x:good", "file not found: "),
        (f"{file}:bad", "has no 'bad'; it has good, later"),
        (f"{file}:NOT", "NOT is not a function but int"),
        (f"{file.parent}/broken_rewards.py:f", "raised ModuleNotFoundError: No module named"),
        (f"{file.parent}/leaving_rewards.py:f", "raised SystemExit: 0"),
    ):
        with pytest.raises(RunError) as caught:
            LocalReward.load(text)
        assert caught.value.failure.message.startswith(f"--reward {text}: ")
        assert says in caught.value.failure.message
        assert caught.value.failure.code == "grader_invalid"


def test_a_supervised_run_takes_no_rewards(file: Path, tmp_path: Path) -> None:
    spec = RunSpec(job_id="j", attempt=1, model="m", model_path="m", training_file="train.jsonl")
    (tmp_path / "train.jsonl").write_text("{}\n")
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    assert run.main(tmp_path, rewards=[f"{file}:good"]) == 1
    result = RunResult.model_validate_json((tmp_path / "result.json").read_text())
    assert result.error is not None
    assert "the run's method is supervised, which has no rewards" in result.error.message
