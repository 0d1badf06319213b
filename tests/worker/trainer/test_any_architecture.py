"""Every architecture trains: what our kernels do not know trains by stock means, as TRL trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from benchmarks.models.configs import small_config
from benchmarks.models.record import outcome
from benchmarks.models.train import build, train_ours

from tests.tiny_model import make_tiny_tokenizer

CASES = {
    "gpt2": "lora",
    "bloom": "full",
    "opt": "lora",
    "falcon": "full",
    "gptj": "lora",
    "mpt": "full",
    "gemma3n_text": "lora",
    "phimoe": "full",
    "qwen3_5_moe_text": "lora",
    "llama4_text": "lora",
    "mamba": "full",
    "gemma3": "full",
    "big_bird": "lora",
    "bigbird_pegasus": "full",
    "afmoe": "full",
}
"""Model types that have no `intermediate_size`, no attention, experts, a vision encoder or no
separate backbone. Stock TRL crashes on Llama 4, so its losses are compared with torch's."""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def make(folder: Path, model_type: str, **changes: object) -> Path:
    tokenizer = make_tiny_tokenizer()
    config = small_config(model_type, len(tokenizer))
    for name, value in changes.items():
        setattr(config, name, value)
    build(folder / model_type, config, tokenizer)
    return folder / model_type


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", CASES)
def test_losses_equal_stock_trl(models: Path, tmp_path: Path, model_type: str) -> None:
    model = make(models, model_type)
    result = outcome(tmp_path / "run", model, CASES[model_type])
    assert (result.state, result.detail) == ("stock", result.detail)
    assert result.difference is not None
    assert result.difference <= 1e-5


@pytest.mark.filterwarnings("ignore")
def test_an_error_before_the_first_step_names_the_architecture(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(models, "gpt2")

    def broken(self: object, *_: object, **__: object) -> None:
        raise KeyError("a_name_in_transformers")

    monkeypatch.setattr(transformers.GPT2Model, "forward", broken)
    run = train_ours(tmp_path / "run", model, "lora")
    assert run.losses == []
    assert (run.error.category, run.error.code) == ("user", "model_not_usable")
    assert "GPT2LMHeadModel cannot be trained: KeyError" in run.error.message
    assert "a_name_in_transformers" in run.error.message


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_sees_later_tokens_is_refused(models: Path, tmp_path: Path) -> None:
    model = make(models, "bert", is_decoder=False)
    run = train_ours(tmp_path / "run", model, "full")
    assert (run.error.category, run.error.code) == ("user", "model_not_usable")
    assert "BertLMHeadModel is not a causal language model" in run.error.message


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["gpt2", "bert", "mixtral", "mamba"])
def test_reinforcement_generates_by_transformers(
    models: Path, tmp_path: Path, model_type: str
) -> None:
    """The self-check compares completions, training and stock forward passes."""
    run = train_ours(tmp_path / "run", make(models, model_type), "grpo")
    assert run.error is None
    assert len(run.losses) == 2
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "Generation is slow: it uses transformers" in events
    assert ("The loss does not include the load-balancing loss" in events) == (
        model_type == "mixtral"
    )
