"""Scores of rows and greedy answers, against plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tunesmith_worker.engine.evaluation import scores as scores_module
from tunesmith_worker.engine.evaluation.answers import MAX_ANSWERS, greedy_answers
from tunesmith_worker.engine.evaluation.scores import IGNORED, ScoredRow, score_rows
from tunesmith_worker.engine.patches.trl_compat import add_scoring_head

PAD = 0
Model = Any  # Any: transformers is untyped


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    add_scoring_head(loaded)
    return loaded.eval()


def rows(count: int = 150) -> list[ScoredRow]:
    """Make rows of 2 to 40 tokens whose answers are their second halves."""
    generator = np.random.default_rng(0)
    made = []
    for length in generator.integers(2, 41, count).tolist():
        ids = generator.integers(5, 384, length).tolist()
        labels = [IGNORED] * (length // 2) + ids[length // 2 :]
        made.append(ScoredRow(ids, labels))
    return made


def expected(model: Model, row: ScoredRow) -> tuple[float, int, int]:
    """Score a row with plain transformers: alone, without padding."""
    ids, labels = torch.tensor([row.input_ids]), torch.tensor(row.labels)[1:]
    with torch.no_grad():
        logits = type(model).forward(model, input_ids=ids).logits[0, :-1].double()
    answer = labels != IGNORED
    log_probs = logits.log_softmax(-1)[answer].gather(1, labels[answer][:, None])
    correct = logits[answer].argmax(-1) == labels[answer]
    return -float(log_probs.sum()), int(answer.sum()), int(correct.sum())


def test_rows_have_the_scores_of_plain_transformers(model: Model) -> None:
    data = rows()
    found = score_rows(model, data, pad_token_id=PAD, max_tokens=256)
    truth = [expected(model, row) for row in data]
    assert found.nll == pytest.approx([nll for nll, _, _ in truth], rel=1e-5)
    assert found.tokens.tolist() == [tokens for _, tokens, _ in truth]
    assert found.correct.tolist() == [correct for _, _, correct in truth]
    assert found.loss == pytest.approx(found.nll.sum() / found.tokens.sum())
    assert found.perplexity == pytest.approx(np.exp(found.loss))


def test_a_batch_that_does_not_fit_is_divided(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, sizes = rows(), list[int]()
    forward = scores_module._forward

    def small_device(model: Model, batch: list[ScoredRow], *rest: Any) -> Any:
        size = len(batch) * max(len(row.input_ids) for row in batch)
        if size > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(size)
        return forward(model, batch, *rest)

    whole = score_rows(model, data, pad_token_id=PAD, max_tokens=10_000)
    monkeypatch.setattr(scores_module, "_forward", small_device)
    parts = score_rows(model, data, pad_token_id=PAD, max_tokens=10_000)
    assert max(sizes) <= 100
    assert parts.nll == pytest.approx(whole.nll, rel=1e-5)


def test_scoring_ends_early_with_the_first_rows(model: Model) -> None:
    data = rows()
    found = score_rows(
        model, data, pad_token_id=PAD, max_tokens=256, enough=lambda done: done >= 64
    )
    assert 64 <= len(found) < 100
    whole = score_rows(model, data, pad_token_id=PAD, max_tokens=256)
    assert found.nll == pytest.approx(whole.first(len(found)).nll)


def answers(model: Model, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    defaults: dict[str, Any] = {"max_tokens": 12, "max_seconds": 60.0, "end_tokens": frozenset({2})}
    found = greedy_answers(model, prompts, pad_token_id=PAD, **(defaults | options))
    return [answer.token_ids for answer in found]


def test_a_greedy_answer_does_not_depend_on_the_other_prompts(model: Model) -> None:
    prompts = [list(row.input_ids) for row in rows(MAX_ANSWERS)]
    together = answers(model, prompts)
    assert together == [answers(model, [prompt])[0] for prompt in prompts]
    with torch.no_grad():
        logits = type(model).forward(model, input_ids=torch.tensor([prompts[0]])).logits
    assert together[0][0] == int(logits[0, -1].argmax())


def test_an_answer_ends_with_its_end_token_or_at_a_limit(model: Model) -> None:
    prompt = list(rows(1)[0].input_ids)
    tokens = answers(model, [prompt])[0]
    assert len(tokens) == 12
    end = tokens[5]
    ended = greedy_answers(
        model, [prompt], pad_token_id=PAD, max_tokens=12, max_seconds=60.0,
        end_tokens=frozenset({end}),
    )  # fmt: skip
    assert ended[0].ended
    assert ended[0].token_ids == tokens[: tokens.index(end) + 1]
    assert len(answers(model, [prompt], max_seconds=0.0)[0]) == 1
    with pytest.raises(ValueError, match="at least one token"):
        answers(model, [[]])
