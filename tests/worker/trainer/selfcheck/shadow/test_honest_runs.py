"""Forty sound runs over ten families and all methods give no alarm: before, in and after the first
step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import FAMILIES, model_of
from tests.worker.runs import QUESTIONS, event_data, read_events, read_result
from tests.worker.trainer.grpo.test_exactness import ASKED, GRPO, LENGTH
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

Recipe = dict[str, Any]  # Any: JSON

TEN = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma2"),
    *("gemma3", "phi3", "granite", "olmo2", "smollm3"),
)
BATCH: Recipe = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
LORA: Recipe = {"packing": False, **BATCH}
PACKED: Recipe = {"packing": True, "max_grad_norm": 0.05}
FULL: Recipe = {"tuning": "full", "weight_decay": 0.1, **BATCH}
DROPOUT: Recipe = {"lora": {"lora_dropout": 0.2}, "weight_decay": 0.01, "warmup_steps": 2}
BF16: Recipe = {"precision": "bf16", **BATCH}
FULL_16: Recipe = {"tuning": "full", "precision": "bf16_split_master", "packing": True}
SR8: Recipe = {"tuning": "full", "precision": "bf16_sr8"}
INT8: Recipe = {"quantization": "int8", **BATCH}
STOCK: Recipe = {"patches": "off", **BATCH, "lr_scheduler_type": "cosine"}
RL: Recipe = {"grpo": GRPO, "lora": {"r": 4}, "learning_rate": 1e-3}
RL_KL: Recipe = {**RL, "grpo": {**GRPO, "beta": 0.1, "num_iterations": 2}}
RL_FULL: Recipe = {**RL_KL, "tuning": "full", "lora": None}
RL_BF16: Recipe = {**RL, "precision": "bf16"}
RL_DROPOUT: Recipe = {**RL_KL, "lora": {"r": 4, "lora_dropout": 0.2}}

METHODS: dict[str, Recipe] = {
    "lora": LORA,
    "packed": PACKED,
    "full": FULL,
    "dropout": DROPOUT,
    "bf16": BF16,
    "full-16": FULL_16,
    "sr8": SR8,
    "int8": INT8,
    "stock": STOCK,
    "grpo": RL,
    "grpo-kl": RL_KL,
    "grpo-full": RL_FULL,
    "grpo-bf16": RL_BF16,
    "grpo-dropout": RL_DROPOUT,
}
RUNS = [
    (family, method)
    for place, family in enumerate(TEN)
    for method in [list(METHODS)[(4 * place + i) % len(METHODS)] for i in range(4)]
]
"""Four methods for each family; every method occurs at least twice."""
TRUE = ("skip the model's chat template", ": all_truncated: ")
"""Warnings that are right: prompts are plain text, and an untrained model ends no completion."""
ANSWERS = [
    {**row, "answer": " and ".join([row["answer"]] * (1 + place % 3))}
    for place, row in enumerate(QUESTIONS)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models by family, filled on demand."""
    return {"root": tmp_path_factory.mktemp("families")}


def folder_of(family: str, folders: dict[str, Path]) -> Path:
    if family not in folders:
        tokenizer, folder = make_tiny_tokenizer(), folders["root"] / family
        config = FAMILIES[family]()
        config.vocab_size = len(tokenizer)
        model_of(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders[family] = folder
    return folders[family]


@pytest.mark.parametrize(("family", "method"), RUNS, ids=["-".join(run) for run in RUNS])
def test_a_sound_run_gives_no_alarm(
    make_run: MakeRun, folders: dict[str, Path], family: str, method: str
) -> None:
    recipe = {"max_steps": 10 if method in ("lora", "grpo-kl") else 3, **METHODS[method]}
    given: dict[str, Any] = {"model_path": str(folder_of(family, folders))}
    if method.startswith("grpo"):
        given |= {"method": "reinforcement", "grader": LENGTH}
    run = make_run(ASKED if method.startswith("grpo") else ANSWERS, recipe=recipe, **given)
    assert main(run) == 0, read_result(run).error
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    assert [text for text in warnings if not any(part in text for part in TRUE)] == []
    (detail,) = [d["first_step"] for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    assert "equal plain torch on the stock modules within" in detail
    assert "weights equals AdamW" in detail


def test_the_runs_are_forty_over_ten_families_and_all_methods() -> None:
    assert len(RUNS) == 40
    assert len({family for family, _ in RUNS}) == 10
    assert {method for _, method in RUNS} == METHODS.keys()
