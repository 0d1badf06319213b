"""Evaluation on demand of stored models: the figures of plain transformers, and clear failures."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from tests.worker.runs import QUESTIONS
from tunesmith_schema import Evaluation, JobFailure
from tunesmith_worker.engine.serving.base import load
from tunesmith_worker.rundir.evaluation_spec import EvaluationSpec, ModelFolders
from tunesmith_worker.rundir.paths import write_json
from tunesmith_worker.trainer.evaluation import on_demand, stored_models
from tunesmith_worker.trainer.evaluation.__main__ import command

from .test_supervised import stock_loss

GRADER: Any = {
    "type": "length",
    "name": "short",
    "unit": "characters",
    "target": 5,
    "limit": 50,
}


@pytest.fixture(autouse=True)
def short_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "MAX_ANSWER_TOKENS", 4)


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    """A random adapter, which makes the answers less likely."""
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    model = peft.get_peft_model(base, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def run(folder: Path, rows: list[dict[str, Any]] | str, **fields: Any) -> Evaluation | JobFailure:
    text = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows))
    (folder / "rows.jsonl").write_text(text)
    given = {"file": "rows.jsonl", "file_name": "mine.jsonl", "on": "file", "losses": True}
    write_json(folder / "spec.json", EvaluationSpec.model_validate(given | fields))
    status = command(folder)
    if status == 0:
        return Evaluation.model_validate_json((folder / "evaluation.json").read_bytes())
    return JobFailure.model_validate_json((folder / "failure.json").read_bytes())


def test_losses_of_two_models_are_those_of_plain_transformers(
    tmp_path: Path, tiny_model: Path, adapter: Path
) -> None:
    base = ModelFolders(name="base", base=str(tiny_model))
    tuned = ModelFolders(name="ft:tuned", base=str(tiny_model), adapter=str(adapter))
    found = run(tmp_path, QUESTIONS, model=base, against=tuned)
    assert isinstance(found, Evaluation), found
    assert (found.file, found.rows, found.on) == ("mine.jsonl", len(QUESTIONS), "file")
    scores = {one.model: one for one in found.models}
    losses = [stock_loss(tiny_model, QUESTIONS)]
    assert scores["model"].loss == pytest.approx(losses[0], abs=1e-4)
    merged = tmp_path / "merged"
    stock = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    peft.PeftModel.from_pretrained(stock, adapter).merge_and_unload().save_pretrained(merged)
    transformers.AutoTokenizer.from_pretrained(tiny_model).save_pretrained(merged)
    losses.append(stock_loss(merged, QUESTIONS))
    assert scores["against"].loss == pytest.approx(losses[1], abs=1e-4)
    [compared] = found.comparisons
    assert (compared.model, compared.against) == ("model", "against")
    assert compared.difference == pytest.approx(losses[1] - losses[0], abs=2e-4)
    assert found.outcome == ("better" if losses[0] < losses[1] else "worse")
    assert found.verdict.startswith(f"{found.outcome} by ")
    assert found.verdict.endswith(f"nats on {len(QUESTIONS)} rows")
    assert (found.tuned, found.base) == (scores["model"].loss, scores["against"].loss)
    assert len(found.answers) == 8
    assert found.answers[0].answers.keys() == {"model", "against"}


def test_a_grader_adds_rewards_to_losses_and_one_model_is_not_compared(
    tmp_path: Path, tiny_model: Path, adapter: Path
) -> None:
    base = ModelFolders(name="base", base=str(tiny_model))
    tuned = ModelFolders(name="ft:tuned", base=str(tiny_model), adapter=str(adapter))
    found = run(tmp_path, QUESTIONS, model=base, against=tuned, grader=GRADER)
    assert isinstance(found, Evaluation), found
    assert found.metric == "reward"
    assert [c.metric for c in found.comparisons] == ["reward", "loss"]
    assert {c.level for c in found.comparisons} == {0.995}  # both hold together with 99 %
    for scores in found.models:
        assert scores.reward is not None
        assert scores.scores.keys() == {"short"}
        assert scores.loss is not None
    alone = run(tmp_path, QUESTIONS, model=tuned, losses=True)
    assert isinstance(alone, Evaluation), alone
    [scores] = alone.models
    assert alone.verdict == f"not compared: loss {scores.loss:.4g}"
    assert (alone.outcome, alone.comparisons) == (None, [])


def test_one_model_at_a_time_is_in_memory(
    tmp_path: Path, tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the four loads starts after the earlier model was freed."""
    loaded: list[weakref.ref[Any]] = []

    def counting(*arguments: Any) -> Any:
        assert [one for one in loaded if one() is not None] == []
        base = load(*arguments)
        loaded.append(weakref.ref(base.model))
        return base

    monkeypatch.setattr(stored_models, "load", counting)
    base = ModelFolders(name="base", base=str(tiny_model))
    tuned = ModelFolders(name="ft:tuned", base=str(tiny_model), adapter=str(adapter))
    found = run(tmp_path, QUESTIONS, model=tuned, against=base, grader=GRADER)
    assert isinstance(found, Evaluation), found
    assert len(loaded) == 4


def test_equal_models_are_never_better(tmp_path: Path, tiny_model: Path) -> None:
    base = ModelFolders(name="a", base=str(tiny_model))
    found = run(tmp_path, QUESTIONS, model=base, against=base.model_copy(update={"name": "b"}))
    assert isinstance(found, Evaluation), found
    assert found.outcome == "no_difference"


def test_what_is_wrong_is_named(tmp_path: Path, tiny_model: Path) -> None:
    base = ModelFolders(name="base", base=str(tiny_model))
    missing = ModelFolders(name="gone", base=str(tmp_path / "gone"))
    failed = run(tmp_path, QUESTIONS, model=missing)
    assert isinstance(failed, JobFailure)
    assert (failed.code, failed.param) == ("model_not_usable", "model")
    assert "'gone'" in failed.message
    rows = [*map(json.dumps, QUESTIONS[:3]), '{"question": "?", "answer": 7}']
    failed = run(tmp_path, "\n".join(rows), model=base)
    assert isinstance(failed, JobFailure)
    assert "mine.jsonl, row 4" in failed.message
    grader: dict[str, Any] = {"type": "string_check", "name": "same", "operation": "eq"}
    grader |= {"input": "{{item.nothing}}", "reference": "x"}
    failed = run(tmp_path, QUESTIONS, model=base, grader=grader)
    assert isinstance(failed, JobFailure)
    assert failed.code == "grader_invalid"
    assert "nothing" in failed.message


def test_models_with_different_tokenizers_are_not_compared(
    tmp_path: Path, tiny_model: Path
) -> None:
    other = tmp_path / "other"
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_tokens(["<new>"])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(other)
    tokenizer.save_pretrained(other)
    found = run(
        tmp_path,
        QUESTIONS,
        model=ModelFolders(name="base", base=str(tiny_model)),
        against=ModelFolders(name="other", base=str(other)),
    )
    assert isinstance(found, Evaluation), found
    assert found.verdict == "not compared: the second model was left out"
    assert "different tokenizers" in found.left_out[0]
    assert [scores.model for scores in found.models] == ["model"]
