"""The engine for other families: the native engine's completions, and those of plain forwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from benchmarks.models.configs import small_config

from tests.worker.engine.patches.models import VOCABULARY, make_model, with_lora
from tunesmith_worker.engine.rollout import (
    Completion,
    FinishReason,
    Interrupted,
    Request,
    RolloutDoesNotFit,
    RolloutPlan,
    SamplingParams,
    StockEngine,
    UnusableRequest,
    plan_stock_rollout,
)

from .rollouts import GREEDY, assert_logprobs_equal_a_forward, engine_of, greedy, make_prompts

Untyped = Any  # Any: transformers is not typed

PROMPTS = make_prompts(5, 9, 1, 5, 9, 5)
HOT = SamplingParams(temperature=1.3, top_k=20, top_p=0.9, repetition_penalty=1.2)


def stock_engine(model: Untyped, max_rows: int = 2) -> StockEngine:
    return StockEngine(model, RolloutPlan(weights="in_place", max_rows=max_rows))


def make_gpt2() -> Untyped:
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, **sizes, **ends)
    )


@pytest.mark.parametrize("sampling", [GREEDY, HOT])
def test_completions_are_those_of_the_native_engine(sampling: SamplingParams) -> None:
    model = with_lora(make_model("llama")).eval()
    requests = [
        Request(prompt_ids=ids, max_tokens=4 + 3 * (i % 3), seed=i, sampling=sampling)
        for i, ids in enumerate(PROMPTS)
    ]
    expected = engine_of(model).generate(requests)
    arrived: dict[int, Completion] = {}
    completions = stock_engine(model).generate(requests, arrived.__setitem__)
    for i, (one, other) in enumerate(zip(completions, expected, strict=True)):
        assert one is arrived[i]
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert one.policy_logprobs == pytest.approx(other.policy_logprobs, abs=1e-5)
        assert one.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=1e-5)


def test_the_folders_generation_settings_do_not_count_and_modes_are_restored() -> None:
    model = with_lora(make_gpt2(), target_modules=["c_attn"], fan_in_fan_out=True).train()
    causal = model.get_base_model()
    settings = causal.generation_config
    settings.update(repetition_penalty=9.0, suppress_tokens=[7], min_new_tokens=3)
    modes = {name: module.training for name, module in model.named_modules()}
    completions = greedy(stock_engine(model), PROMPTS, 6)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert causal.generation_config is settings
    assert_logprobs_equal_a_forward(model.eval(), PROMPTS, completions)


def test_a_completion_ends_with_its_stop_token() -> None:
    engine = stock_engine(make_gpt2())
    first, *_ = greedy(engine, PROMPTS[:1], 6)
    stop = first.token_ids[2]
    rest = Request(prompt_ids=PROMPTS[3], max_tokens=6, seed=0, sampling=GREEDY)
    request = Request(
        prompt_ids=PROMPTS[0],
        max_tokens=6,
        seed=0,
        sampling=GREEDY,
        stop_token_ids=frozenset([stop]),
    )
    ended, other = engine.generate([request, rest])
    assert (ended.finish_reason, ended.stop_reason) == (FinishReason.STOP, stop)
    assert ended.token_ids == first.token_ids[: first.token_ids.index(stop) + 1]
    assert len(other.token_ids) == 6


def test_generation_can_be_interrupted_and_bad_requests_are_refused() -> None:
    engine = stock_engine(make_gpt2())
    with pytest.raises(UnusableRequest, match=f"0 to {VOCABULARY - 1}"):
        engine.generate([Request(prompt_ids=(VOCABULARY,), max_tokens=1, seed=0)])
    calls = iter([False, False, True])
    engine.interrupted = lambda: next(calls)
    with pytest.raises(Interrupted):
        greedy(engine, PROMPTS[:1], 6)
    assert engine.figures.decode_steps == 2


def test_the_plan_counts_keys_and_values_of_every_layer() -> None:
    model = make_gpt2()
    sizes = {"rows": 100, "prompt_tokens": 10, "max_tokens": 6}
    row = 2 * 2 * 32 * 4 * 16 + 4 * VOCABULARY * 4
    plan = plan_stock_rollout(model, **sizes, free=10 * row)
    assert (plan.row_bytes, plan.max_rows, plan.weights) == (row, 8, "in_place")
    with pytest.raises(RolloutDoesNotFit, match="6 completion tokens needs"):
        plan_stock_rollout(model, **sizes, free=row)


def test_lengths_with_other_rope_frequencies_are_known() -> None:
    model = make_model("llama")
    engine = stock_engine(model)
    assert engine.stable_length is None
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert engine.stable_length == model.config.max_position_embeddings


def make_hybrid() -> Untyped:
    torch.manual_seed(0)
    config = small_config("granitemoehybrid", VOCABULARY)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.parametrize("make", [make_gpt2, make_hybrid])
def test_prompts_of_similar_lengths_share_a_batch(make: Callable[[], Untyped]) -> None:
    """Longer prompts feed their last tokens step by step, also through the state of Mamba."""
    model = make().eval()
    engine = stock_engine(model, max_rows=8)
    completions = greedy(engine, make_prompts(5, 9, 7), 12)
    assert engine.figures.decode_steps == 12 + 9 - 5
    assert_logprobs_equal_a_forward(model, make_prompts(5, 9, 7), completions)
    greedy(engine, make_prompts(5, 12), 12)
    assert engine.figures.decode_steps == 2 * 12, "they differ by more than half of a completion"


@pytest.mark.parametrize("make", [make_gpt2, make_hybrid])
def test_ended_rows_leave_the_batch(make: Callable[[], Untyped]) -> None:
    model = make().eval()
    prompts, lengths = make_prompts(5, 5, 6, 6), (2, 3, 30, 4)
    requests = [
        Request(prompt_ids=ids, max_tokens=tokens, seed=0, sampling=GREEDY)
        for ids, tokens in zip(prompts, lengths, strict=True)
    ]
    engine = stock_engine(model, max_rows=8)
    completions = engine.generate(requests)
    assert [len(completion.token_ids) for completion in completions] == [*lengths]
    assert engine.figures.row_steps < 4 * 31 // 2
    alone = [stock_engine(model).generate([request])[0] for request in requests]
    assert [one.token_ids for one in completions] == [other.token_ids for other in alone]
    assert_logprobs_equal_a_forward(model, prompts, completions)


@pytest.mark.parametrize(
    ("make", "shares"),
    [
        (make_gpt2, True),
        (make_hybrid, False),
        *(
            (partial(make_model, family), True)
            for family in ("llama", "qwen3", "gemma2", "mistral")
        ),
    ],
)
def test_equal_prompts_are_computed_once(
    make: Callable[[], Untyped], shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts are longer than a sliding window; one of them has more tokens than the batch's
    start."""
    model = make().eval()
    prompts = make_prompts(20, 22)
    requests = [
        Request(prompt_ids=prompts[i // 3], max_tokens=6, seed=i, sampling=HOT) for i in range(6)
    ]
    alone = [stock_engine(model, 1).generate([request])[0] for request in requests]
    sizes: list[tuple[int, ...]] = []
    backbone = model.base_model
    forward = backbone.forward

    def counted(*given: Untyped, **named: Untyped) -> Untyped:
        sizes.append(tuple((given[0] if given else named["input_ids"]).shape))
        return forward(*given, **named)

    monkeypatch.setattr(backbone, "forward", counted)
    completions = stock_engine(model, 8).generate(requests)
    assert ((2, 19) in sizes, (6, 20) in sizes) == (True, not shares)
    monkeypatch.undo()
    for one, other in zip(completions, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.policy_logprobs == pytest.approx(other.policy_logprobs, abs=1e-5)
    assert_logprobs_equal_a_forward(
        model, [request.prompt_ids for request in requests], completions, 1.3
    )
