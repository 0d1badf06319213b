"""Every RoPE scaling and the sliding window, in sequences longer than the original context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import COMMON, FAMILIES, make_model, model_of
from tunesmith_worker.engine.rollout import Request, SamplingParams

from .rollouts import assert_logprobs_equal_a_forward, engine_of, forward_logprobs, make_prompts
from .scalings import LONGROPE, ORIGINAL, SCALINGS, logprobs_by_prefix, make_scaled

Untyped = Any  # Any: transformers is not typed


def _requests(prompts: list[tuple[int, ...]], new: int) -> list[Request]:
    return [Request(prompt_ids=one, max_tokens=new, seed=i) for i, one in enumerate(prompts)]


@pytest.mark.parametrize("name", SCALINGS)
def test_the_scaling_changes_this_model(name: str) -> None:
    """Otherwise the tests below would prove nothing."""
    plain = model_of(
        transformers.LlamaConfig(**COMMON | {"num_hidden_layers": 2, "rope_parameters": _default()})
    ).eval()
    (prompt,) = make_prompts(60)
    scaled = forward_logprobs(make_scaled(name), prompt[:30], prompt[30:])
    assert float((scaled - forward_logprobs(plain, prompt[:30], prompt[30:])).abs().max()) > 0.05


def _default() -> dict[str, Untyped]:
    return {"rope_type": "default", "rope_theta": 1000.0}


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn", "longrope"])
def test_sequences_beyond_the_original_context_score_as_a_forward_does(name: str) -> None:
    model = make_scaled(name)
    lengths = (40, 70) if name == "longrope" else (20, 70)
    prompts = make_prompts(*lengths)
    engine = engine_of(model)
    assert engine.stable_length == (ORIGINAL if name == "longrope" else None)
    assert_logprobs_equal_a_forward(model, prompts, engine.generate(_requests(prompts, 40)))


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_frequencies_that_change_with_the_length_are_the_prefixes_own(name: str) -> None:
    """One row begins below the original context and crosses it, one begins beyond it, and one ends
    before."""
    model = make_scaled(name)
    prompts = make_prompts(24, 40, 5)
    engine = engine_of(model)
    for prompt, one in zip(prompts, engine.generate(_requests(prompts, 18)), strict=True):
        expected = logprobs_by_prefix(model, prompt, one.token_ids)
        assert one.policy_logprobs == pytest.approx(expected, abs=3e-5)
    assert engine.stable_length == ORIGINAL


def test_longrope_greedy_tokens_across_the_boundary_are_those_of_generate() -> None:
    """Without a cache: Phi-3 recomputes its cache there, which fails before transformers 5.20."""
    model = model_of(
        transformers.Phi3Config(
            **COMMON | {"num_hidden_layers": 2, "rope_parameters": {"rope_theta": 1e3, **LONGROPE}},
            original_max_position_embeddings=ORIGINAL,
            resid_pdrop=0.0,
        )
    ).eval()
    (prompt,) = make_prompts(24)
    with torch.no_grad():
        expected = model.generate(
            input_ids=torch.tensor([prompt]),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            use_cache=False,
        )
    request = Request(
        prompt_ids=prompt, max_tokens=20, seed=0, sampling=SamplingParams(temperature=0.0)
    )
    (found,) = engine_of(model).generate([request])
    assert found.token_ids == expected[0, 24:].tolist()


def test_training_is_not_touched_by_the_tables_of_a_rollout() -> None:
    model = make_scaled("dynamic")
    (prompt,) = make_prompts(20)
    before = forward_logprobs(model, prompt[:10], prompt[10:])
    engine_of(model).generate(_requests([prompt], 30))
    assert model.model.rotary_emb.max_seq_len_cached == ORIGINAL
    assert torch.equal(forward_logprobs(model, prompt[:10], prompt[10:]), before)


WINDOWED = ["mistral", "qwen2-sliding", "gemma2", "gemma3", "phi3", "olmo3", "ministral", "cwm"]


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_shorter_than_prompt_and_completion(family: str) -> None:
    """Rows of one step stand at different places, and some see no token of their prompt."""
    model = make_model(family).eval()
    prompts = make_prompts(30, 3, 12)
    completions = engine_of(model, max_rows=2).generate(_requests(prompts, 25))
    assert_logprobs_equal_a_forward(model, prompts, completions)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_larger_limit_changes_no_number(family: str) -> None:
    """The length limit bounds memory; it never changes what is computed."""
    model = make_model(family)
    (prompt,) = make_prompts(9)
    found = [
        engine_of(model).generate([Request(prompt_ids=prompt, max_tokens=limit, seed=1)])[0]
        for limit in (12, 70, 130)
    ]
    for one in found:
        assert one.token_ids[:12] == found[0].token_ids
        assert one.sampling_logprobs[:12] == found[0].sampling_logprobs


def test_the_window_is_what_makes_the_difference() -> None:
    """Not the test's weakness: a window twice as long gives other numbers."""
    widths: list[Callable[[], Untyped]] = [
        FAMILIES["mistral"],
        lambda: transformers.MistralConfig(**COMMON, sliding_window=14),
    ]
    (prompt,) = make_prompts(40)
    a, b = (forward_logprobs(model_of(make()).eval(), prompt[:20], prompt[20:]) for make in widths)
    assert float((a - b).abs().max()) > 0.05


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_row_that_ends_at_the_boundary_may_be_carried_beyond_it(name: str) -> None:
    """Beside rows that go on: one ended row of five does not pay for a new batch."""
    model = make_scaled(name)
    prompts = make_prompts(ORIGINAL - 4, 5, 6, 7, 8)
    requests = [
        Request(prompt_ids=one, max_tokens=4 if place == 0 else 12, seed=place)
        for place, one in enumerate(prompts)
    ]
    found = engine_of(model).generate(requests)
    assert len(prompts[0]) + len(found[0].token_ids) == ORIGINAL
    assert_logprobs_equal_a_forward(model, prompts, found)
