"""Small base models with unusual vocabularies, and the result of a run on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.tiny_model import make_tiny_tokenizer

Untyped = Any  # Any: transformers and peft are not typed
MakeBase = Callable[..., Path]


@pytest.fixture
def make_base(tmp_path: Path) -> MakeBase:
    """Return `make_base(tied=..., rows=..., zero=[...], pad_is_eos=...)`, which makes a Llama in a
    folder."""

    def make(
        *, tied: bool, extra_rows: int = 0, zero: tuple[str, ...] = (), pad_is_eos: bool = False
    ) -> Path:
        folder = tmp_path / f"base-{tied}-{extra_rows}-{len(zero)}-{pad_is_eos}"
        tokenizer = make_tiny_tokenizer(pad_token="<|im_end|>" if pad_is_eos else "<|endoftext|>")
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer) + extra_rows,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=tied,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = transformers.LlamaForCausalLM(config)
            matrices = [model.get_input_embeddings(), model.get_output_embeddings()]
            for matrix in matrices:
                matrix.weight.data.normal_(std=0.2)
                matrix.weight.data[tokenizer.convert_tokens_to_ids(list(zero))] = 0.0
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


def load(base: Path, adapter: Path | None = None, *, rows: int | None = None) -> Untyped:
    """Load with stock transformers and PEFT. `rows`: resize the vocabulary first."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    if rows is not None and rows > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(rows)
    return (
        model.eval() if adapter is None else peft.PeftModel.from_pretrained(model, adapter).eval()
    )


def assert_gives_the_probe(model: Untyped, adapter: Path) -> None:
    """Check that the logits equal those of the saved model, within 1e-5 of the largest logit."""
    expected = load_file(adapter / "probe.safetensors")["logits"]
    error = float((probe_logits(model, adapter) - expected).abs().max() / expected.abs().max())
    assert error <= 1e-5


def probe_logits(model: Untyped, adapter: Path) -> torch.Tensor:
    """Return the model's logits for the tokens of the saved model's probe, in float64."""
    probe = load_file(adapter / "probe.safetensors")
    with torch.no_grad():
        logits = model(input_ids=probe["input_ids"]).logits[:, -probe["logits"].shape[1] :]
    double: torch.Tensor = logits.double()
    return double


def adapter_numbers(run: Path) -> int:
    weights = load_file(run / "adapter" / "adapter_model.safetensors")
    return sum(weight.numel() for weight in weights.values())
