"""Evaluation of supervised runs on the tiny model: figures, verdicts, and what they leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events, read_result
from tunesmith_schema import Evaluation, EventKind, RunReport
from tunesmith_worker.trainer.evaluation import supervised
from tunesmith_worker.trainer.run import main

TRAIN, VALID = QUESTIONS[::2], QUESTIONS[1::2] * 2
FAST: dict[str, Any] = {
    "max_steps": 8, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "adapter_dtype": "fp32"
}  # fmt: skip


def evaluation(run: Path) -> Evaluation:
    return Evaluation.model_validate_json((run / "evaluation.json").read_bytes())


def scores(found: Evaluation) -> dict[str, Any]:
    return {scores.model: scores for scores in found.models}


def stock_loss(folder: Path, rows: list[dict[str, str]]) -> float:
    """Compute the loss per answer token with plain transformers, row by row."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    nll, count = 0.0, 0
    for row in rows:
        turns = [{"role": "user", "content": row["question"]}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        turns.append({"role": "assistant", "content": row["answer"]})
        ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False)).input_ids
        start = len(tokenizer(prompt).input_ids)
        end = len(ids) - 1  # the template ends with a line break after the answer's end token
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        nll -= sum(float(logits[place - 1, ids[place]]) for place in range(start, end))
        count += end - start
    return nll / count


def test_a_tuned_model_is_compared_with_its_base_on_the_validation_file(
    make_run: MakeRun, tiny_model: Path
) -> None:
    run = make_run(TRAIN, valid=VALID, recipe=FAST)
    assert main(run) == 0
    found, figures = evaluation(run), scores(evaluation(run))
    assert (found.on, found.file, found.rows) == ("validation_file", "valid.jsonl", 16)
    assert found.outcome == "better"
    assert found.verdict.startswith("better by ")
    assert found.verdict.endswith(" nats on 16 rows")
    # The trainer's own evaluation and plain transformers give the same losses.
    last = [m["valid_loss"] for m in event_data(run, EventKind.METRICS) if "valid_loss" in m][-1]
    assert figures["tuned"].loss == pytest.approx(last, rel=1e-5)
    assert figures["base"].loss == pytest.approx(stock_loss(tiny_model, VALID), rel=1e-5)
    [compared] = found.comparisons
    assert compared.difference == pytest.approx(figures["base"].loss - figures["tuned"].loss)
    assert len(found.answers) == 8
    answer = found.answers[0]
    assert answer.expected == VALID[answer.row - 1]["answer"]
    assert VALID[answer.row - 1]["question"] in answer.prompt
    assert set(answer.answers) == {"tuned", "base"}
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert report.phases["evaluate_result"] == pytest.approx(found.seconds, abs=0.2)
    assert f"evaluation: {found.verdict}" in [event.message for event in read_events(run)]


def test_a_model_that_did_not_move_shows_no_difference_on_training_rows(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe=FAST | {"learning_rate": 1e-12, "max_steps": 2})
    assert main(run) == 0
    found = evaluation(run)
    assert (found.on, found.outcome) == ("training_file", "no_difference")
    assert found.verdict.startswith("no difference shown (")
    assert found.verdict.endswith(" on 16 training rows) (fit, not generalisation)")


def test_a_model_that_training_spoiled_is_worse(make_run: MakeRun) -> None:
    """A model that knows the answers is trained on one wrong answer."""
    recipe = {"tuning": "full", "max_steps": 8, "learning_rate": 1e-2, "evaluate": False}
    good = make_run(QUESTIONS, recipe=recipe, name="good")
    assert main(good) == 0
    wrong = [row | {"answer": "?" * 20} for row in TRAIN]
    run = make_run(wrong, valid=VALID, recipe=FAST, model_path=str(good / "adapter"))
    assert main(run) == 0
    assert evaluation(run).outcome == "worse"


def test_the_evaluation_changes_nothing_of_the_run(make_run: MakeRun) -> None:
    """Equal losses and equal files."""
    runs = {
        name: make_run(TRAIN, valid=VALID, recipe=FAST | {"evaluate": name == "with"}, name=name)
        for name in ("with", "without")
    }
    assert [main(run) for run in runs.values()] == [0, 0]
    assert not (runs["without"] / "evaluation.json").exists()
    assert losses(runs["with"]) == losses(runs["without"])
    for file in ("adapter_model.safetensors", "probe.safetensors"):
        first, second = ((run / "adapter" / file).read_bytes() for run in runs.values())
        assert first == second


def test_a_failing_evaluation_is_a_warning(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(TRAIN, recipe=FAST | {"max_steps": 2})

    def fail(*_: Any, **__: Any) -> Any:
        assert read_result(run).outcome == "succeeded"
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(supervised, "score_rows", fail)
    assert main(run) == 0
    warning = read_events(run)[-1]
    assert warning.level == "warn"
    assert "could not be evaluated: OutOfMemoryError: CUDA out of memory" in warning.message
    assert not (run / "evaluation.json").exists()


@pytest.mark.parametrize("bias", ["none", "all"])
def test_weights_that_are_not_the_result_are_compared_too(
    make_run: MakeRun, tiny_model: Path, bias: str
) -> None:
    """The validation rows contradict the training rows, so an early step stays the best."""
    contrary = [{"question": row["question"], "answer": "No."} for row in TRAIN]
    recipe = FAST | {"keep": "best", "eval_steps": 1, "learning_rate": 0.02, "lora": {"bias": bias}}
    run = make_run(TRAIN, valid=contrary * 2, recipe=recipe)
    assert main(run) == 0
    found, result = evaluation(run), read_result(run)
    figures, valid = scores(found), event_data(run, EventKind.METRICS)
    by_step = {m["step"]: m["valid_loss"] for m in valid if "valid_loss" in m}
    assert result.step < 8
    assert figures["tuned"].step == result.step
    assert figures["tuned"].loss == pytest.approx(by_step[result.step], rel=1e-4)
    assert figures["last"].loss == pytest.approx(by_step[8], rel=1e-4)
    assert figures["base"].loss == pytest.approx(stock_loss(tiny_model, contrary), rel=1e-5)
    assert [(c.model, c.against) for c in found.comparisons] == [
        ("tuned", "base"),
        ("tuned", "last"),
    ]
    assert {c.level for c in found.comparisons} == {0.995}


def test_full_tuning_compares_the_last_step_with_the_best(make_run: MakeRun) -> None:
    """Reading the result back replaces the last weights in memory, so they are saved before."""
    contrary = [{"question": row["question"], "answer": "No."} for row in TRAIN]
    recipe = {"keep": "best", "eval_steps": 1, "learning_rate": 0.1, "max_steps": 4}
    run = make_run(TRAIN, valid=contrary * 2, recipe=FAST | recipe | {"tuning": "full"})
    assert main(run) == 0
    figures, valid = scores(evaluation(run)), event_data(run, EventKind.METRICS)
    by_step = {m["step"]: m["valid_loss"] for m in valid if "valid_loss" in m}
    assert figures["tuned"].step == read_result(run).step < 4
    assert figures["tuned"].loss == pytest.approx(by_step[read_result(run).step], rel=1e-4)
    assert (figures["last"].step, figures["last"].loss) == (4, pytest.approx(by_step[4], rel=1e-4))
    assert not list((run / "checkpoints").glob(".*"))


def test_the_best_checkpoint_is_compared_with_the_result(make_run: MakeRun) -> None:
    contrary = [{"question": row["question"], "answer": "No."} for row in TRAIN]
    recipe = FAST | {"eval_steps": 1, "save_steps": 1, "learning_rate": 0.02}
    run = make_run(TRAIN, valid=contrary * 2, recipe=recipe)
    assert main(run) == 0
    figures, valid = scores(evaluation(run)), event_data(run, EventKind.METRICS)
    by_step = {m["step"]: m["valid_loss"] for m in valid if "valid_loss" in m}
    best = min(by_step, key=lambda step: by_step[step])
    assert (figures["best"].step, figures["tuned"].step) == (best, 8)
    assert figures["best"].loss == pytest.approx(by_step[best], rel=1e-4)


def test_full_tuning_reads_the_base_model_once_more(make_run: MakeRun, tiny_model: Path) -> None:
    recipe = {"tuning": "full", "max_steps": 4, "learning_rate": 1e-3}
    run = make_run(TRAIN, valid=VALID, recipe=recipe)
    assert main(run) == 0
    found = evaluation(run)
    figures = scores(found)
    assert figures["base"].loss == pytest.approx(stock_loss(tiny_model, VALID), rel=1e-5)
    assert figures["tuned"].loss == pytest.approx(stock_loss(run / "adapter", VALID), rel=1e-5)
    assert found.outcome == "better"


def test_a_model_from_random_weights_has_no_base(make_run: MakeRun) -> None:
    recipe = {"tuning": "full", "from_scratch": True, "max_steps": 2}
    run = make_run(TRAIN, valid=VALID, recipe=recipe)
    assert main(run) == 0
    found = evaluation(run)
    assert (found.verdict, found.outcome) == ("not compared: the base model was left out", None)
    assert "base: the run started from random weights (recipe.from_scratch)" in found.left_out
    assert found.tuned == scores(found)["tuned"].loss


def test_plain_text_is_continued_from_its_middle(make_run: MakeRun) -> None:
    texts = [{"text": f"There are {number} apples in the box today."} for number in range(12)]
    run = make_run(texts, recipe=FAST | {"max_steps": 2})
    assert main(run) == 0
    answer = evaluation(run).answers[0]
    assert f"{answer.prompt}{answer.expected}" == texts[answer.row - 1]["text"]
    assert len(answer.prompt) > 5


def test_rows_that_are_split_off_are_evaluated_and_not_trained(make_run: MakeRun) -> None:
    def run_with(seed: int, name: str) -> tuple[Evaluation, list[dict[str, Any]]]:
        recipe = FAST | {"validation_split": 0.25, "max_steps": 2, "num_train_epochs": "auto"}
        run = make_run(QUESTIONS, recipe=recipe, seed=seed, name=name)
        assert main(run) == 0, read_result(run).error
        message = "train.jsonl: 4 of 16 rows are kept out of training as validation rows "
        assert [e for e in read_events(run) if e.message.startswith(message)]
        return evaluation(run), event_data(run, EventKind.METRICS)

    found, metrics = run_with(1, "a")
    again, _ = run_with(1, "b")
    other, _ = run_with(2, "c")
    rows = [sorted(answer.row for answer in e.answers) for e in (found, again, other)]
    assert (found.on, found.rows) == ("validation_split", 4)
    assert rows[0] == rows[1] != rows[2]
    assert any("valid_loss" in point for point in metrics)
    assert found.verdict == "no difference shown: a verdict needs at least 8 rows, got 4"


def test_a_split_that_leaves_nothing_is_refused(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS[:1], recipe=FAST | {"validation_split": 0.5})
    assert main(run) == 1
    assert json.loads((run / "result.json").read_text())["error"]["param"] == (
        "recipe.validation_split"
    )
