"""Greedy text and log-probs are those of plain transformers and PEFT, also with several adapters
in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from tunesmith_worker.engine.rollout import UnsupportedModel
from tunesmith_worker.engine.serving.native import NativeServing
from tunesmith_worker.engine.serving.protocol import UnsupportedAdapter
from tunesmith_worker.engine.serving.stock import StockServing

from .engines import (
    CACHE_BYTES,
    Client,
    Reference,
    cpu_base,
    greedy,
    native,
    prompts_of,
    save_adapters,
    save_base,
)

Untyped = Any  # Any: transformers is not typed

IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
STOCK: dict[str, tuple[Untyped, dict[str, Any]]] = {
    "gpt2": (
        transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=256, **IDS),
        {"fan_in_fan_out": True},
    ),
    "mamba": (
        transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=8, **IDS),
        {},
    ),
}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "phi3", "granite", "olmo2"])
def test_eight_adapters_interleaved_answer_as_peft(tmp_path: Path, family: str) -> None:
    """64 prompts of unequal length, in turn for eight adapters and the base model."""
    folder = save_base(tmp_path / "base", family)
    adapters = save_adapters(folder, tmp_path, 8)
    reference = Reference(folder, adapters)
    names = [None, *adapters]
    requests = [greedy(prompt, names[number % 9]) for number, prompt in enumerate(prompts_of(64))]
    with native(folder, max_rows=24) as engine:
        for adapter in adapters:
            engine.add_adapter(adapter, adapter)
        results = Client(engine).run(*requests)
    tokenizer = cpu_base(folder).tokenizer
    for request, result in zip(requests, results, strict=True):
        reference.check(request, result)
        assert result.text == tokenizer.decode(result.token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("family", ["gemma2", "phi3"])
def test_windows_and_soft_caps_answer_as_transformers(tmp_path: Path, family: str) -> None:
    """Windows of 6 and 9 tokens, which are shorter than most prompts and all answers."""
    folder = save_base(tmp_path / "base", family)
    reference, requests = Reference(folder), [greedy(prompt) for prompt in prompts_of(6)]
    with native(folder) as engine:
        for request, result in zip(requests, Client(engine).run(*requests), strict=True):
            reference.check(request, result)


@pytest.mark.parametrize("count", [0, 1])
def test_one_adapter_or_none_answers_as_peft(tmp_path: Path, count: int) -> None:
    folder = save_base(tmp_path / "base")
    adapters = save_adapters(folder, tmp_path, count)
    reference = Reference(folder, adapters)
    requests = [greedy(prompt, next(iter(adapters), None)) for prompt in prompts_of(64)]
    with native(folder) as engine:
        for adapter in adapters:
            engine.add_adapter(adapter, adapter)
        for request, result in zip(requests, Client(engine).run(*requests), strict=True):
            reference.check(request, result)


def test_few_adapters_of_many_answer_as_peft(tmp_path: Path) -> None:
    """Two adapters of ten in a batch: each is computed alone. One adapter is removed before."""
    folder = save_base(tmp_path / "base")
    adapters = save_adapters(folder, tmp_path, 10)
    requests = [greedy(p, adapters[4 + 2 * (i % 2)]) for i, p in enumerate(prompts_of(8))]
    reference = Reference(folder, adapters)
    with native(folder) as engine:
        for adapter in adapters:
            engine.add_adapter(adapter, adapter)
        engine.remove_adapter(adapters[1])
        for request, result in zip(requests, Client(engine).run(*requests), strict=True):
            reference.check(request, result)


@pytest.mark.parametrize("tied", [True, False])
def test_trained_token_rows_answer_as_peft(tmp_path: Path, tied: bool) -> None:
    """Tokens whose embedding and head rows an adapter trained."""
    config = transformers.LlamaConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=tied,
    )
    folder = save_base(tmp_path / "base", config=config)
    rows = [7, 20, 100, 250]
    chosen = rows if tied else {"embed_tokens": rows, "lm_head": rows}
    adapters = save_adapters(folder, tmp_path, 2, trainable_token_indices=chosen)
    adapters += save_adapters(folder, tmp_path / "plain", 1)
    # PEFT cannot load both kinds of adapters on one model.
    references: dict[str | None, Reference] = {
        adapter: Reference(folder, [adapter]) for adapter in adapters
    }
    references[None] = Reference(folder)
    prompts = [(*prompt[:5], 20, 7, *prompt[5:]) for prompt in prompts_of(12)]
    requests = [greedy(p, [*adapters, None][i % 4]) for i, p in enumerate(prompts)]
    with native(folder) as engine:
        for adapter in adapters:
            engine.add_adapter(adapter, adapter)
        for request, result in zip(requests, Client(engine).run(*requests), strict=True):
            references[request.adapter].check(request, result)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"bias": "all"},
        {"alpha_pattern": {"q_proj": 3}},
        {"rank_pattern": {"q_proj": 3}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_adapters_are_left_to_peft(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = save_base(tmp_path / "base", "qwen2")
    (adapter,) = save_adapters(folder, tmp_path, 1, **settings)
    with native(folder) as engine, pytest.raises(UnsupportedAdapter):
        engine.add_adapter(adapter, adapter)
    stock = StockServing(cpu_base(folder))
    stock.add_adapter(adapter, adapter)
    request = greedy(prompts_of(5)[4], adapter)
    Reference(folder, [adapter]).check(request, Client(stock).run(request)[0])
    stock.close()


@pytest.mark.parametrize("family", STOCK)
def test_unknown_families_answer_through_transformers(tmp_path: Path, family: str) -> None:
    config, settings = STOCK[family]
    folder = save_base(tmp_path / "base", config=config)
    with pytest.raises(UnsupportedModel):
        NativeServing(cpu_base(folder), cache_bytes=CACHE_BYTES)
    adapters = save_adapters(folder, tmp_path, 2, **settings)
    reference = Reference(folder, adapters)
    names = [None, *adapters]
    requests = [greedy(p, names[i % 3], new=6) for i, p in enumerate(prompts_of(12))]
    engine = StockServing(cpu_base(folder))
    for adapter in adapters:
        engine.add_adapter(adapter, adapter)
    for request, result in zip(requests, Client(engine).run(*requests), strict=True):
        reference.check(request, result)
    engine.close()
