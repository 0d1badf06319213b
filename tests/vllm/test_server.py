"""vLLM's server in another process: completions of the native engine, from the current weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import model_of, packed_batch, with_lora
from tests.worker.trainer.test_run_engine import Run
from tunesmith_schema import PROJECTIONS
from tunesmith_worker.engine.rollout import (
    Completion,
    EngineLost,
    EngineUnavailable,
    SamplingParams,
)
from tunesmith_worker.engine.rollout.vllm import VLLMEngine

from .engines import PLAN, SHAPE, Engines, act_in_mid_rollout, engines_of, gap, moved, requests_of
from .serving import ROLLOUTS, VLLMServer, vllm_server
from .test_colocated import LAWS

Untyped = Any  # Any: transformers is not typed

pytestmark = pytest.mark.timeout(600)
GREEDY = SamplingParams(temperature=0.0)
KEY = "secret-of-the-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    folder = tmp_path_factory.mktemp("served")
    _base().save_pretrained(folder / "model")
    options = (*ROLLOUTS, "--skip-tokenizer-init", "--api-key", KEY)
    with vllm_server(folder / "model", folder / "log", options) as running:
        yield running


@pytest.fixture
def engines(server: VLLMServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    monkeypatch.setenv("TUNESMITH_ROLLOUT_URL", server.url)
    monkeypatch.setenv("TUNESMITH_ROLLOUT_TOKEN", KEY)
    both = engines_of(with_lora(_base()))
    yield both
    both.vllm.close()


def _base() -> Untyped:
    return model_of(transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True))


@pytest.mark.parametrize("law", LAWS)
def test_completions_equal_those_of_the_native_engine(engines: Engines, law: str) -> None:
    ours, native = engines.both(requests_of(64, LAWS[law]))
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]
    for a, b in zip(ours, native, strict=True):
        assert (a.finish_reason, a.stop_reason) == (b.finish_reason, b.stop_reason)
        assert a.policy_logprobs == pytest.approx(b.policy_logprobs, abs=1e-4)
        assert a.sampling_logprobs == pytest.approx(b.sampling_logprobs, abs=1e-4)


def test_training_steps_reach_the_next_rollout(engines: Engines) -> None:
    requests = requests_of(64, GREEDY)
    before = engines.vllm.generate(requests)
    trained = [p for p in engines.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    for step in range(20):
        engines.model(**packed_batch(seed=step), use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    ours, native = engines.both(requests)
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]
    assert gap(ours, native) <= 1e-4
    assert [one.token_ids for one in ours] != [one.token_ids for one in before]
    vllm = engines.vllm._vllm
    assert vllm is not None
    for _ in range(50):
        vllm.load()
    assert engines.vllm.generate(requests) == ours


def test_each_projection_of_each_layer_moves_the_rollout(engines: Engines) -> None:
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


def test_full_tuning_sends_all_weights(
    server: VLLMServer, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = engines_of(_base())
    with torch.no_grad():
        for parameter in both.model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.02)
    ours, native = both.both(requests_of(6, GREEDY))
    both.vllm.close()
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]
    # The next job has the base model's embedding and norms again.
    ours, native = engines.both(requests_of(6, GREEDY))
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]


def test_a_second_trainer_never_changes_the_completions_of_the_first(engines: Engines) -> None:
    """The first loses the server, and gets its own completions after it has loaded again."""
    requests = requests_of(24, GREEDY, tokens=60)
    expected = engines.vllm.generate(requests)
    other = engines_of(with_lora(_base(), seed=9))
    assert other.vllm.generate(requests) != expected
    arrived: dict[int, Completion] = {}
    assert other.vllm._vllm is not None
    act_in_mid_rollout(engines.vllm, requests, arrived, other.vllm._vllm.load)
    with pytest.raises(EngineLost, match="lost this run's weights"):
        engines.vllm.generate(requests, arrived.__setitem__)
    assert 0 < len(arrived) < len(requests)
    assert all(expected[index] == completion for index, completion in arrived.items())
    assert engines.vllm.generate(requests) == expected
    other.vllm.close()


@pytest.mark.parametrize("layers", [SHAPE["num_hidden_layers"], 5])
def test_another_base_model_is_refused(engines: Engines, layers: int) -> None:
    shape = SHAPE | {"num_hidden_layers": layers}
    other = model_of(transformers.Qwen2Config(**shape, tie_word_embeddings=True), seed=7)
    with pytest.raises(EngineUnavailable, match="another base model"):
        VLLMEngine(with_lora(other), PLAN).generate(requests_of(1, GREEDY))


def test_another_dtype_is_refused(engines: Engines) -> None:
    other = with_lora(_base()).bfloat16()
    with pytest.raises(EngineUnavailable, match="in float32, but the job in bfloat16"):
        VLLMEngine(other, PLAN).start()


def test_a_wrong_api_key_is_found_before_training(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESMITH_ROLLOUT_TOKEN", "wrong")
    with pytest.raises(EngineUnavailable, match="refuses the API key"):
        VLLMEngine(engines.model, PLAN).start()


def test_a_limit_of_tokens_below_the_longest_row_is_refused(engines: Engines) -> None:
    with pytest.raises(EngineUnavailable, match="at most 200 tokens") as caught:
        VLLMEngine(engines.model, replace(PLAN, row_tokens=201)).start()
    assert "--max-model-len" in caught.value.remedy


@pytest.mark.parametrize(("fast_inference", "then"), [(True, "vllm"), ("auto", "native")])
def test_a_run_survives_a_server_that_is_killed_in_mid_rollout(
    server: VLLMServer, engines: Engines, fast_inference: bool | str, then: str
) -> None:
    """The last test, because it ends the server of the others."""
    requests = requests_of(64, GREEDY, tokens=60)
    expected = engines.native.generate(requests)
    run = Run()
    engine = run.engine(engines.model, fast_inference)
    assert engine.name == "vllm"
    server.ensure()
    engine.generate(requests[:1])
    arrived: list[int] = []

    def kill() -> None:
        server.kill()
        if then == "vllm":  # as a service manager does
            threading.Timer(1.0, server.start).start()

    assert isinstance(engine._current, VLLMEngine)
    act_in_mid_rollout(engine._current, requests, arrived, kill)
    completions = engine.generate(requests, lambda index, _: arrived.append(index))
    engine.close()
    assert [one.token_ids for one in completions] == [one.token_ids for one in expected]
    assert sorted(arrived) == list(range(len(requests)))  # each once
    assert engine.name == then
    [warning] = run.warnings
    assert "does not answer" in warning
