"""RoPE whose frequencies depend on the length: rows of one micro-batch influence one another as
docs/explanation/kernels.md says, and the settings named there avoid it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import model_of
from tests.worker.runs import event_data, losses, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

ORIGINAL = 32
"""Original context length, in tokens."""
TEXTS = [{"text": text} for text in ("How much is two plus three?", "What is two? " * 8)]
"""A row below and a row above the original context length."""
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 9.0, 17.0],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("longrope") / "model"
    tokenizer = make_tiny_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, rope_parameters=LONGROPE,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model_of(config).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


def loss_of_rows_alone(folder: Path, length: int | None) -> float:
    """Return the mean loss per label of rows that run alone in plain transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    nll, count = 0.0, 0
    for row in TEXTS:
        ids = [*tokenizer(row["text"]).input_ids, tokenizer.eos_token_id][:length]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        nll -= sum(float(logits[place - 1, ids[place]]) for place in range(1, len(ids)))
        count += len(ids) - 1
    return nll / count


def first_loss(make_run: MakeRun, folder: Path, name: str, **recipe: Any) -> float:
    settings = {"max_steps": 1, "overlong": "truncate", "self_check": True, **recipe}
    run = make_run(TEXTS, recipe=settings, name=name, model_path=str(folder))
    assert main(run) == 0, read_result(run).error
    (detail,) = [d["first_step"] for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    skipped = "not compared: the model's positions depend on the longest row" in detail
    assert skipped == ("max_seq_length" not in recipe)
    return float(losses(run)[0])


def test_rows_of_one_micro_batch_share_the_frequencies_of_the_longest(
    make_run: MakeRun, folder: Path
) -> None:
    alone = loss_of_rows_alone(folder, None)
    together = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    assert abs(first_loss(make_run, folder, "together", **together) - alone) > 1e-3
    apart = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "packing": False}
    assert first_loss(make_run, folder, "apart", **apart) == pytest.approx(alone, rel=1e-5)
    short = first_loss(make_run, folder, "short", **together, max_seq_length=ORIGINAL)
    assert short == pytest.approx(loss_of_rows_alone(folder, ORIGINAL), rel=1e-5)
