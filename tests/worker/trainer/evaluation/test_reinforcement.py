"""Evaluation of reinforcement runs: rewards of greedy answers, graded as in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.worker.conftest import MakeRun
from tests.worker.runs import read_events, read_result
from tunesmith_schema import Evaluation
from tunesmith_worker.trainer.evaluation.budget import Budget
from tunesmith_worker.trainer.run import main

ASKED = [{"prompt": f"How much is {a} plus {b}?"} for a in range(6) for b in range(2)]
SHORT = {"type": "length", "unit": "characters", "target": 4, "limit": 40}
RECIPE: dict[str, Any] = {
    "max_steps": 2,
    "learning_rate": 1e-2,
    "lora": {"r": 4, "bias": "all"},
    "grpo": {"num_generations": 3, "prompts_per_step": 2, "max_completion_length": 8},
}


def run_with(make_run: MakeRun, **options: Any) -> tuple[Path, Evaluation]:
    recipe = RECIPE | options.pop("recipe", {})
    run = make_run(ASKED, recipe=recipe, method="reinforcement", grader=SHORT, **options)
    assert main(run) == 0, read_result(run).error
    assert [e.message for e in read_events(run) if "could not be evaluated" in e.message] == []
    return run, Evaluation.model_validate_json((run / "evaluation.json").read_bytes())


def greedy_text(folder: Path, prompt: str) -> str:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.generate(ids, do_sample=False, max_new_tokens=8, pad_token_id=0)
    text: str = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    return text


def test_greedy_answers_of_base_and_tuned_model_are_graded(
    make_run: MakeRun, tiny_model: Path
) -> None:
    _, found = run_with(make_run, valid=ASKED[:9])
    assert (found.on, found.metric, found.rows) == ("validation_file", "reward", 9)
    assert {scores.model for scores in found.models} == {"base", "tuned"}
    assert len(found.answers) == 8
    for answer in found.answers:
        text = greedy_text(tiny_model, ASKED[answer.row - 1]["prompt"])
        assert answer.answers["base"] == text
        assert answer.rewards["base"] == pytest.approx(max(0.0, 1 - abs(len(text) - 4) / 36))
    [compared] = found.comparisons
    assert found.base is not None
    assert found.tuned is not None
    assert compared.difference == pytest.approx(found.tuned - found.base)
    assert " reward " in found.verdict
    assert found.verdict.endswith((" on 9 prompts", " on 9 prompts)"))


def test_prompts_that_are_split_off_are_evaluated(make_run: MakeRun) -> None:
    _, found = run_with(make_run, recipe={"validation_split": 0.25})
    assert (found.on, found.rows, found.rows_available) == ("validation_split", 3, 3)


def test_without_time_eight_training_prompts_are_evaluated(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "left", property(lambda budget: 0.0))
    _, found = run_with(make_run)
    assert (found.on, found.rows) == ("training_file", 8)
    assert found.left_out == ["4 of 12 prompts"]
    assert "8 training prompts" in found.verdict
    assert found.verdict.endswith("(fit, not generalisation)")
