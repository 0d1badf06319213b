"""What a request gets does not depend on what else is asked."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
import torch

from tests.worker.engine.patches.models import make_model, with_lora
from tunesmith_worker.engine.rollout import (
    Completion,
    FinishReason,
    NotFinite,
    Request,
    SamplingParams,
)
from tunesmith_worker.engine.rollout.cache import Prefix
from tunesmith_worker.engine.rollout.decoder import Decoder

from .rollouts import GREEDY, assert_logprobs_equal_a_forward, engine_of, make_prompts

PROMPTS = make_prompts(4, 23, 11)
SEVERAL = [
    Request(
        prompt_ids=PROMPTS[place % 3],
        max_tokens=3 + 7 * place % 19,
        seed=1000 + place,
        sampling=[
            SamplingParams(),
            SamplingParams(temperature=0.6, top_p=0.8),
            SamplingParams(top_k=9, repetition_penalty=1.3, presence_penalty=0.4),
            GREEDY,
        ][place % 4],
        stop_token_ids=frozenset({7, 50, 90}),
    )
    for place in range(14)
]


def _assert_same(actual: Sequence[Completion], expected: Sequence[Completion]) -> None:
    assert [one.token_ids for one in actual] == [one.token_ids for one in expected]
    assert [one.finish_reason for one in actual] == [one.finish_reason for one in expected]
    for a, b in zip(actual, expected, strict=True):
        assert a.sampling_logprobs == pytest.approx(b.sampling_logprobs, abs=2e-5)
        assert a.policy_logprobs == pytest.approx(b.policy_logprobs, abs=2e-5)


@pytest.mark.parametrize(("family", "max_rows"), [("llama", 2), ("llama", 64), ("gemma2", 5)])
def test_together_in_any_order_is_as_one_by_one(family: str, max_rows: int) -> None:
    """Rows end at different steps, so batches shrink, and fill up again while they may."""
    model = with_lora(make_model(family))
    alone = engine_of(model)
    expected = [alone.generate([one])[0] for one in SEVERAL]
    engine = engine_of(model, max_rows=max_rows)
    _assert_same(engine.generate(SEVERAL), expected)
    _assert_same(engine.generate(SEVERAL[::-1]), expected[::-1])
    _assert_same(engine.generate(SEVERAL[3:8]), expected[3:8])
    ends = {one.finish_reason for one in expected}
    assert ends == {FinishReason.STOP, FinishReason.LENGTH}


def test_a_prompt_is_computed_once_and_kept_once_for_all_its_requests() -> None:
    engine = engine_of(make_model("llama"), max_rows=4)
    requests = [Request(prompt_ids=PROMPTS[1], max_tokens=5, seed=i) for i in range(8)]
    engine.generate(requests)
    assert engine.figures.prefill_tokens == len(PROMPTS[1])
    assert engine.figures.generated_tokens == 40
    layers, kv_heads, head_dim, fp32 = 3, 2, 12, 4
    prompt = 2 * layers * kv_heads * head_dim * fp32 * len(PROMPTS[1])
    rows = 2 * layers * kv_heads * head_dim * fp32 * 4 * 64  # room for 64 tokens each
    assert engine.figures.cache_bytes == prompt + rows


def test_a_prompts_memory_is_freed_with_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Prefix]] = []
    alive: list[int] = []
    stock = Decoder.prefill

    def watched(self: Decoder, prompts: Sequence[Sequence[int]]) -> list[Prefix]:
        alive.append(sum(one() is not None for one in made))
        prefixes = stock(self, prompts)
        made.extend(map(weakref.ref, prefixes))
        return prefixes

    monkeypatch.setattr(Decoder, "prefill", watched)
    prompts = make_prompts(3, 4, 5, 6, 7, 8)
    requests = [Request(prompt_ids=one, max_tokens=4, seed=0) for one in prompts for _ in "ab"]
    engine_of(make_model("llama"), max_rows=2).generate(requests)
    assert len(made) == 6
    assert max(alive) <= 2


def test_a_model_gone_bad_is_told_and_not_sampled_from() -> None:
    model = make_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 3] = torch.nan
    for params in (SamplingParams(), GREEDY):
        request = Request(prompt_ids=PROMPTS[0], max_tokens=3, seed=0, sampling=params)
        with pytest.raises(NotFinite, match="logits are not finite"):
            engine_of(model).generate([request])


def test_autocast_around_it_changes_nothing() -> None:
    engine = engine_of(with_lora(make_model("llama")))
    request = Request(prompt_ids=PROMPTS[0], max_tokens=6, seed=0)
    expected = engine.generate([request])
    with torch.autocast("cpu", torch.bfloat16):
        assert engine.generate([request]) == expected


def test_ended_rows_are_left_out_and_free_ones_filled() -> None:
    engine = engine_of(make_model("llama"), max_rows=4)
    lengths = [2, 40, 2, 40, 2, 40, 2, 40]
    requests = [
        Request(prompt_ids=PROMPTS[i % 3], max_tokens=n, seed=i) for i, n in enumerate(lengths)
    ]
    engine.generate(requests)
    drawn_by_steps = sum(lengths) - len(lengths)  # the first of each comes with its prompt
    assert engine.figures.row_steps <= drawn_by_steps * 1.1
    assert engine.figures.decode_steps <= 80


def test_equal_seeds_draw_alike_and_others_do_not() -> None:
    engine = engine_of(make_model("llama"))
    a, b, c = engine.generate(
        [Request(prompt_ids=PROMPTS[0], max_tokens=30, seed=seed) for seed in (5, 5, 6)]
    )
    assert a.token_ids == b.token_ids
    assert a.token_ids != c.token_ids


def test_room_for_drawn_tokens_grows_past_its_first_size() -> None:
    model = make_model("llama")
    requests = [
        Request(prompt_ids=PROMPTS[0], max_tokens=n, seed=n, sampling=SamplingParams(temperature=2))
        for n in (150, 10)
    ]
    completions = engine_of(model).generate(requests)
    assert [len(one.token_ids) for one in completions] == [150, 10]
    assert_logprobs_equal_a_forward(model, [PROMPTS[0]] * 2, completions, temperature=2.0)
