"""Measure pass@1 of a model on questions with numeric answers.

pass@1 is the share of sampled completions with the correct answer. Our engine generates the
completions, and our grader grades them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import peft
import torch
import transformers
from pydantic import TypeAdapter

from tunesmith_schema import Grader
from tunesmith_worker.engine.rollout import (
    NativeEngine,
    Request,
    RolloutPlan,
    SamplingParams,
    eos_token_ids,
)
from tunesmith_worker.trainer.data.prompts import prompt_rows
from tunesmith_worker.trainer.rewards import CompletionText, Grading

Untyped = Any  # Any: transformers and PEFT are not typed


def pass_at_1(
    model: Path, adapter: Path | None, questions: Path, grader: dict[str, str], *, samples: int,
    max_tokens: int,
) -> float:  # fmt: skip
    """Grade `samples` completions of each row of `questions`, at temperature 1 with fixed seeds."""
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    stop = frozenset(eos_token_ids(base, tokenizer))
    tuned = base if adapter is None else peft.PeftModel.from_pretrained(base, adapter)
    engine = NativeEngine(tuned, RolloutPlan(weights="merged", max_rows=128), tokenizer)
    vocabulary = base.get_input_embeddings().num_embeddings
    rows, _ = prompt_rows(questions, tokenizer, limit=None, refuse=True, vocabulary=vocabulary)
    repeated = [row for row in rows for _ in range(samples)]
    requests = [
        Request(
            prompt_ids=row.prompt_ids,
            max_tokens=max_tokens,
            seed=place,
            sampling=SamplingParams(),
            stop_token_ids=stop,
        )
        for place, row in enumerate(repeated)
    ]
    with Grading(TypeAdapter(Grader).validate_python(grader)) as grading:
        graded = grading.begin(repeated)
        for place, done in enumerate(engine.generate(requests)):
            text = tokenizer.decode(done.token_ids, skip_special_tokens=True)
            sample = CompletionText(text, len(done.token_ids), done.finish_reason.value)
            graded.add(place, sample, done.token_ids)
        return fmean(grade.rewards[0] or 0.0 for grade in graded.finish())
