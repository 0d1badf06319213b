"""vLLM in the trainer's process: completions of the native engine, from the current weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import packed_batch
from tunesmith_schema import PROJECTIONS
from tunesmith_worker.engine.rollout import (
    Completion,
    Interrupted,
    NotFinite,
    SamplingParams,
    UnusableRequest,
)
from tunesmith_worker.engine.rollout.vllm.colocated import ColocatedVLLM

from .engines import SHAPE, Engines, adapted, engines_of, gap, moved, requests_of

Untyped = Any  # Any: transformers is not typed

GREEDY = SamplingParams(temperature=0.0)
LAWS = {
    "greedy": GREEDY,
    "temperature": SamplingParams(temperature=0.7),
    "filters": SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01),
    "penalties": SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2
    ),
}


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    torch.manual_seed(5)
    before = torch.get_rng_state(), torch.get_num_threads()
    both = engines_of(adapted(transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True)))
    both.vllm.generate(requests_of(1, GREEDY))
    assert torch.equal(torch.get_rng_state(), before[0])
    torch.set_num_threads(before[1])  # vLLM replaces this function, and we put it back
    assert torch.get_num_threads() == before[1]
    yield both
    both.vllm.close()


@pytest.mark.parametrize("law", LAWS)
def test_completions_equal_those_of_the_native_engine(engines: Engines, law: str) -> None:
    """64 prompts of different lengths: tokens, ends, and both log-probs of each token."""
    ours, native = engines.both(requests_of(64, LAWS[law]))
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]
    ends = [(one.finish_reason, one.stop_reason) for one in ours]
    assert ends == [(one.finish_reason, one.stop_reason) for one in native]
    assert {str(end[0]) for end in ends} == {"stop", "length"}
    for a, b in zip(ours, native, strict=True):
        assert a.policy_logprobs == pytest.approx(b.policy_logprobs, abs=1e-4)
        assert a.sampling_logprobs == pytest.approx(b.sampling_logprobs, abs=1e-4)
    assert gap(ours, native) <= 1e-4


def test_requests_with_different_laws_share_a_batch(engines: Engines) -> None:
    requests = [
        replace(request, sampling=list(LAWS.values())[i % len(LAWS)])
        for i, request in enumerate(requests_of(16, GREEDY))
    ]
    ours, native = engines.both(requests)
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]


def test_training_steps_reach_the_next_rollout(engines: Engines) -> None:
    """20 optimiser steps; the greedy tokens are those of the native engine, and new ones."""
    requests = requests_of(64, GREEDY)
    before = engines.vllm.generate(requests)
    trained = [p for p in engines.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    for step in range(20):
        batch = packed_batch(seed=step)
        engines.model(**batch, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    ours, native = engines.both(requests)
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]
    assert gap(ours, native) <= 1e-4
    assert [one.token_ids for one in ours] != [one.token_ids for one in before]


def test_loading_the_same_weights_fifty_times_changes_no_bit(engines: Engines) -> None:
    requests = requests_of(64, GREEDY)
    first, vllm = engines.vllm.generate(requests), engines.vllm._vllm
    assert vllm is not None
    for _ in range(50):
        vllm.load()
    assert engines.vllm.generate(requests) == first
    assert first == engines.vllm.generate(requests)
    native = engines.native.generate(requests)
    assert [one.token_ids for one in first] == [one.token_ids for one in native]


def test_each_projection_of_each_layer_moves_the_rollout(engines: Engines) -> None:
    """A scale that compounds or a projection that is not loaded would show."""
    requests = requests_of(2, GREEDY, tokens=3)
    unchanged = engines.vllm.generate(requests)
    adapters = {
        name: module
        for name, module in engines.model.named_modules()
        if name.rpartition(".")[2] in PROJECTIONS and hasattr(module, "lora_B")
    }
    assert len(adapters) == 7 * SHAPE["num_hidden_layers"]
    for name, module in adapters.items():
        weight = module.lora_B["default"].weight
        with torch.no_grad():
            kept = weight.clone()
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.2)
            ours, native = engines.both(requests)
            weight.copy_(kept)
        assert moved(ours, unchanged) > 1e-3, name
        assert gap(ours, native) <= 1e-4, name
    assert engines.vllm.generate(requests) == unchanged


def test_completions_arrive_one_by_one_and_a_callback_can_fail(engines: Engines) -> None:
    requests = requests_of(6, GREEDY)
    arrived: dict[int, Completion] = {}
    completions = engines.vllm.generate(requests, arrived.__setitem__)
    assert [arrived[i] for i in range(6)] == completions
    assert list(arrived) != list(range(6))  # short ones first

    def fail(index: int, completion: Completion) -> None:
        raise KeyError("from the callback")

    with pytest.raises(KeyError, match="from the callback"):
        engines.vllm.generate(requests, fail)
    assert engines.vllm.generate(requests) == completions


def test_an_interrupted_rollout_leaves_nothing_behind(engines: Engines) -> None:
    requests = requests_of(6, GREEDY)
    expected = engines.vllm.generate(requests)
    answers = iter([False, False, True])
    engines.vllm.interrupted = lambda: next(answers)
    with pytest.raises(Interrupted):
        engines.vllm.generate(requests)
    engines.vllm.interrupted = lambda: False
    assert engines.vllm.generate(requests) == expected


def test_weights_that_are_not_numbers_are_reported(engines: Engines) -> None:
    requests = requests_of(2, GREEDY)
    expected = engines.vllm.generate(requests)
    weight = next(p for name, p in engines.model.named_parameters() if "lora_B" in name)
    with torch.no_grad():
        kept = weight.clone()
        weight.fill_(torch.nan)
        with pytest.raises(NotFinite):
            engines.vllm.generate(requests)
        weight.copy_(kept)
    assert engines.vllm.generate(requests) == expected


def test_unknown_tokens_are_refused_before_generation(engines: Engines) -> None:
    [request] = requests_of(1, GREEDY)
    with pytest.raises(UnusableRequest, match="0 to 130"):
        engines.vllm.generate([replace(request, prompt_ids=(5, 131))])


def test_the_cache_takes_no_memory_between_rollouts(engines: Engines) -> None:
    engines.vllm.generate(requests_of(64, GREEDY))
    vllm = engines.vllm._vllm
    assert isinstance(vllm, ColocatedVLLM)
    [caches] = vllm._llm.collective_rpc(lambda worker: worker.model_runner.kv_caches)
    assert all(bool((cache == 0).all()) for cache in caches)
