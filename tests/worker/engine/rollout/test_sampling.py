"""The law is transformers', token for token, and the draw follows it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from tunesmith_worker.engine.rollout import SamplingParams
from tunesmith_worker.engine.rollout.sampling import (
    PenaltyState,
    Uniforms,
    apply_filters,
    apply_penalties,
    sample,
)

Untyped = Any  # Any: transformers is not typed

PROMPT, DRAWN = [3, 9, 9, 20], [5, 9, 5, 5]
SIZE = 300  # no multiple of the blocks that a draw looks at


def _logits(rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(1)) * 3


def _seen(rows: int = 6) -> list[PenaltyState]:
    seen = [PenaltyState(PROMPT, SIZE, torch.device("cpu")) for _ in range(rows)]
    for one in seen:
        for token in DRAWN:
            one.add(token)
    return seen


def _log_distribution(
    logits: torch.Tensor, params: SamplingParams, seen: list[PenaltyState]
) -> torch.Tensor:
    scores = apply_penalties(logits, params, seen) if params.has_penalties else logits
    return torch.log_softmax(apply_filters(scores, params), -1)


def _by_transformers(params: SamplingParams, logits: torch.Tensor) -> torch.Tensor:
    """The processors that `generate` itself puts together for these settings."""
    given: dict[str, Untyped] = {
        "do_sample": True,
        "temperature": params.temperature,
        "top_p": params.top_p,
    }
    given |= {"top_k": params.top_k, "repetition_penalty": params.repetition_penalty}
    given |= {"min_p": params.min_p or None}
    config = transformers.LlamaConfig(
        vocab_size=SIZE, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1,
    )  # fmt: skip
    model: Untyped = transformers.LlamaForCausalLM(config)
    settings, _ = model._prepare_generation_config(transformers.GenerationConfig(**given))
    processors = model._get_logits_processor(
        settings, input_ids_seq_length=len(PROMPT), logits_processor=[]
    )
    ids = torch.tensor([[*PROMPT, *DRAWN]] * len(logits))
    return torch.log_softmax(processors(ids, logits.clone()), -1)


LAWS = [
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(top_k=5),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.1),
    SamplingParams(repetition_penalty=1.4),
    SamplingParams(temperature=1.7, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=0.8),
]


@pytest.mark.parametrize("params", LAWS, ids=str)
def test_the_law_equals_transformers_bit_for_bit(params: SamplingParams) -> None:
    expected = _by_transformers(params, _logits())
    assert torch.equal(_log_distribution(_logits(), params, _seen()), expected)


def test_presence_and_frequency_are_taken_from_what_was_drawn_and_not_from_the_prompt() -> None:
    logits = _logits()
    found = _log_distribution(
        logits, SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), _seen()
    )
    expected = logits.clone()
    expected[:, 5] -= 0.5 + 0.25 * 3
    expected[:, 9] -= 0.5 + 0.25 * 1
    assert torch.equal(found, expected.log_softmax(-1))


@pytest.mark.parametrize("params", LAWS, ids=str)
def test_the_draw_inverts_the_laws_cumulative_distribution(params: SamplingParams) -> None:
    """Every u on a fine grid: each token comes as often as the law says, to the grid's step."""
    steps = 20_000
    logits = _logits(1)
    log_p = _log_distribution(logits, params, _seen(1))[0]
    grid = [(i + 0.5) / steps for i in range(steps)]
    drawn = sample(logits.expand(steps, -1).clone(), params, grid, _seen(1) * steps)
    counts = torch.bincount(torch.tensor(drawn.tokens), minlength=SIZE) / steps
    assert float((counts - log_p.exp()).abs().max()) <= 1.5 / steps
    assert not counts[log_p == -torch.inf].any()
    expected = log_p[torch.tensor(drawn.tokens)].tolist()
    assert drawn.sampling_logprobs == pytest.approx(expected, abs=2e-6)
    policy = torch.log_softmax(logits[0] / params.temperature, -1)
    assert drawn.policy_logprobs == pytest.approx(policy[drawn.tokens].tolist(), abs=2e-6)


@pytest.mark.parametrize("places", [[7, 211], [140, 150]])
@pytest.mark.parametrize("u", [0.0, 1.0 - 2**-53])
def test_no_token_of_probability_zero_is_drawn_at_either_end(u: float, places: list[int]) -> None:
    """Nor if the first or the last block of the vocabulary has no other tokens."""
    logits = torch.full((1, SIZE), -torch.inf)
    logits[0, places] = torch.tensor([0.0, 0.3])
    drawn = sample(logits, SamplingParams(), [u], [])
    assert drawn.tokens == [places[0] if u == 0.0 else places[1]]


@pytest.mark.parametrize("places", [[7, 211], [7, 9]])
def test_a_number_between_two_tokens_draws_the_later_one(places: list[int]) -> None:
    logits = torch.full((1, SIZE), -torch.inf)
    logits[0, places] = 0.0
    assert sample(logits, SamplingParams(), [0.5], []).tokens == [places[1]]


def test_greedy_takes_the_first_of_the_largest_and_was_certain() -> None:
    logits = torch.zeros(2, SIZE)
    logits[0, [4, 6]] = 3.0
    logits[1, 9] = 2.0
    drawn = sample(logits.clone(), SamplingParams(temperature=0.0), [0.9, 0.9], [])
    assert drawn.tokens == [4, 9]
    assert drawn.sampling_logprobs == [0.0, 0.0]
    expected = logits.log_softmax(-1)[[0, 1], drawn.tokens].tolist()
    assert drawn.policy_logprobs == pytest.approx(expected)


def test_uniform_numbers_come_from_the_seed_and_the_place_alone() -> None:
    one, other = Uniforms(2**64 - 1), Uniforms(2**64 - 1)
    late = other[700]
    values = [one[place] for place in range(701)]
    assert values[700] == late
    assert values[:300] == [other[place] for place in range(300)]
    assert len(set(values)) == 701
    assert 0.45 < sum(values) / 701 < 0.55
    assert Uniforms(1)[0] != Uniforms(2)[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("top_p", 1.5), ("min_p", -1.0), ("repetition_penalty", 0.0),
     ("top_k", -1), ("presence_penalty", 3.0), ("temperature", float("nan"))],
)  # fmt: skip
def test_settings_out_of_bounds_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be .*{value}"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]  # the point of the test
