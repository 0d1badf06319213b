"""What is not computed exactly is refused by name; what fits is planned from bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import COMMON, make_model, model_of, with_lora
from tunesmith_worker.engine.rollout import (
    Request,
    RolloutDoesNotFit,
    RolloutPlan,
    UnsupportedModel,
    UnusableRequest,
    plan_rollout,
)
from tunesmith_worker.engine.rollout.linear import Linear, PackedLinear, can_pack, make_linear

from .rollouts import assert_logprobs_equal_a_forward, engine_of, greedy, make_prompts

Untyped = Any  # Any: transformers is not typed


def _with_hook() -> Untyped:
    model = make_model("llama")
    model.model.layers[1].register_forward_hook(lambda *_: None)
    return model


def _two_adapters() -> Untyped:
    model = with_lora(make_model("llama"))
    model.add_adapter("second", model.peft_config["default"])
    model.base_model.set_adapter(["default", "second"])
    return model


class OwnForCausalLM(transformers.LlamaForCausalLM):  # type: ignore[misc]  # untyped
    """Somebody's subclass, which may compute anything."""


MODELS: dict[str, tuple[Callable[[], Untyped], str]] = {
    "another architecture": (
        lambda: model_of(transformers.GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=1)),
        "GPT2LMHeadModel: unsupported model family",
    ),
    "an unknown layer": (
        lambda: model_of(
            transformers.MixtralConfig(**COMMON, num_local_experts=2, num_experts_per_tok=1)
        ),
        r"unsupported model family \(MixtralDecoderLayer\)",
    ),
    "a subclass": (
        lambda: OwnForCausalLM(transformers.LlamaConfig(**COMMON)),
        "the model class is not transformers' LlamaForCausalLM",
    ),
    "a hook": (_with_hook, "LlamaDecoderLayer has hooks"),
    "DoRA": (lambda: with_lora(make_model("llama"), use_dora=True), "LoRA variant Dora"),
    "two adapters": (_two_adapters, "2 adapters are active"),
    "a bias of LoRA's own": (
        lambda: with_lora(make_model("llama-bias"), lora_bias=True),
        "LoRA with a bias",
    ),
    "another activation": (
        lambda: model_of(transformers.LlamaConfig(**COMMON, hidden_act="relu")),
        "activation ReLU",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_is_not_covered_is_refused_with_the_reason(case: str) -> None:
    make, reason = MODELS[case]
    with pytest.raises(UnsupportedModel, match=reason):
        engine_of(make())


def test_a_model_that_changes_after_the_engine_was_made_is_looked_at_again() -> None:
    model = make_model("llama")
    engine = engine_of(model)
    model.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModel, match="has hooks"):
        engine.generate([Request(prompt_ids=(3,), max_tokens=1, seed=0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "at least one token"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"seed": -1}, "seed must be 0"),
        ({"seed": 1 << 64}, "seed must be 0"),
        ({"stop": ("a", "")}, "empty text"),
    ],
)
def test_requests_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**{"prompt_ids": (1,), "max_tokens": 1, "seed": 0, **change})


@pytest.mark.parametrize("ids", [(3, 131), (-1,)])
def test_token_ids_that_the_model_has_no_row_for_are_refused(ids: tuple[int, ...]) -> None:
    engine = engine_of(make_model("llama"))
    with pytest.raises(
        UnusableRequest, match="request 0: prompt_ids must be token ids of the model, 0 to 130"
    ):
        engine.generate([Request(prompt_ids=ids, max_tokens=1, seed=0)])


def test_no_requests_no_completions() -> None:
    assert engine_of(make_model("llama")).generate([]) == []


def test_without_onednns_private_products_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith_worker.engine.rollout.linear.can_pack", lambda *_: False)
    model, prompts = with_lora(make_model("qwen2")), make_prompts(5, 9)
    assert_logprobs_equal_a_forward(model, prompts, greedy(engine_of(model), prompts, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_products_equal_plain_ones_at_any_number_of_rows(
    dtype: torch.dtype, biased: bool
) -> None:
    if not can_pack(dtype, torch.device("cpu")):
        pytest.skip(f"oneDNN has no packed products in {dtype} here")
    weight = torch.randn(33, 20).to(dtype)
    bias = torch.randn(33).to(dtype) if biased else None
    packed, plain = make_linear(weight, bias, 16), Linear(weight, bias)
    assert isinstance(packed, PackedLinear)
    bound = 1e-5 if dtype == torch.float32 else 0.05
    for rows in (1, 7, 16, 300):
        x, residual = torch.randn(rows, 20).to(dtype), torch.randn(rows, 33).to(dtype)
        assert torch.allclose(packed(x), plain(x), atol=bound, rtol=bound)
        added, expected = packed.add_to(residual, x), plain.add_to(residual, x)
        assert torch.allclose(added, expected, atol=bound, rtol=bound)


def _plan(free: int, rows: int = 32) -> RolloutPlan:
    model = with_lora(make_model("llama"))
    return plan_rollout(model, rows=rows, prompt_tokens=100, max_tokens=400, free=free)


def test_a_merged_copy_is_taken_where_it_fits_and_else_the_adapter_is_folded() -> None:
    roomy = _plan(1 << 30)
    assert (roomy.weights, roomy.max_rows) == ("merged", 32)
    h, i, v, kv = 48, 80, 131, 24
    assert roomy.copy_bytes == 4 * (3 * (h * (h + 2 * kv) + h * h + 3 * h * i) + v * h)
    assert roomy.row_bytes == 4 * (3 * 2 * kv * 500 + 4 * v)
    tight = _plan(int((roomy.copy_bytes + 7 * roomy.row_bytes) / 0.8))
    assert tight.weights == "in_place"
    assert tight.max_rows == 7 + roomy.copy_bytes // roomy.row_bytes
    assert "added to the training weights" in tight.reason
    between = _plan(int((roomy.copy_bytes + 9 * roomy.row_bytes) / 0.8) + 10)
    assert (between.weights, between.max_rows) == ("merged", 9)
    assert between.figures()["copy_bytes"] == roomy.copy_bytes


def test_no_more_rows_than_are_wanted() -> None:
    assert _plan(1 << 30, rows=3).max_rows == 3


def test_a_completion_that_cannot_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        RolloutDoesNotFit,
        match=r"100 prompt and 400 completion tokens needs .* bytes .* only .* bytes",
    ):
        _plan(1000)
