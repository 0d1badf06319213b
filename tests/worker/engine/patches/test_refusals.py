"""What our kernels do not compute stays stock, is counted, and still gives stock's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import transformers

from tunesmith_worker.engine.patches import patch, stock_attention_reason

from .models import (
    COMMON,
    FAMILIES,
    assert_same_gradients,
    equal_bits,
    make_model,
    make_tuned,
    model_of,
    packed_batch,
    run_step,
    scored_by_trl,
    with_lora,
)

Untyped = Any  # Any: transformers and PEFT are not typed

BOTH = {"attention_block": 3, "mlp_block": 3}


def _check(model: Untyped, stock: dict[tuple[str, str], int]) -> Untyped:
    """Patched, `model` gives the numbers it gave before; `stock` is all that stays so."""
    batch = packed_batch()
    torch.manual_seed(1)
    expected, gradients = run_step(model, batch)
    report = patch(model).report
    assert dict(report.unchanged) == stock
    for mechanism, reason in stock:
        assert f"{stock[mechanism, reason]} x {mechanism} ({reason})" in report.summary()
    torch.manual_seed(1)
    ours, found = run_step(model, batch)
    assert ours.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert_same_gradients(found, gradients)
    return report


def _config(family: str, **changes: Untyped) -> Untyped:
    config = FAMILIES[family]()
    for name, value in changes.items():
        assert hasattr(config, name) or name == "hidden_activation"
        setattr(config, name, value)
    return config


UNKNOWN = {
    "ApertusDecoderLayer": lambda: transformers.ApertusConfig(**COMMON),
    "OlmoeDecoderLayer": lambda: transformers.OlmoeConfig(
        **COMMON, num_experts=4, num_experts_per_tok=2, output_router_logits=True
    ),
    "DeepseekV3DecoderLayer": lambda: transformers.DeepseekV3Config(
        **COMMON | {"num_key_value_heads": 4},
        **{"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
        **{"v_head_dim": 12, "first_k_dense_replace": 3},
    ),
    "GptOssDecoderLayer": lambda: transformers.GptOssConfig(
        **COMMON, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_family_keeps_its_attention_and_its_masks(name: str) -> None:
    """Attention sinks and values narrower than keys are not ours."""
    reason = f"unsupported model family ({name})"
    model = scored_by_trl(model_of(UNKNOWN[name]()))
    assert stock_attention_reason(model) == reason
    report = _check(model, {("attention", reason): 1})
    assert report.counts == {"loss": 1}


def test_a_layer_of_the_same_name_from_elsewhere_is_unknown() -> None:
    model = make_model("llama")
    layer = model.model.layers[1]
    layer.__class__ = type("LlamaDecoderLayer", (type(layer),), {"__module__": "elsewhere"})
    assert stock_attention_reason(model) == "unsupported model family (LlamaDecoderLayer)"


def test_a_model_without_a_list_of_layers_is_unknown() -> None:
    config = transformers.GPT2Config(vocab_size=131, n_embd=48, n_layer=2, n_head=4)
    model = scored_by_trl(model_of(config)).eval()
    _check(model, {("attention", "GPT2Model has no list of decoder layers"): 1})


def test_attention_in_both_directions_is_not_ours() -> None:
    model = scored_by_trl(model_of(_config("gemma3", use_bidirectional_attention=True)))
    _check(model, {("attention", "non-causal attention"): 1})


def test_attention_dropout_is_not_ours() -> None:
    model = scored_by_trl(model_of(_config("llama", attention_dropout=0.2))).train()
    assert stock_attention_reason(model) == "attention dropout"
    report = _check(model, {("attention", "attention dropout"): 1})
    assert report.counts == {"loss": 1}


def test_dropout_on_the_residual_stream_is_not_ours() -> None:
    model = scored_by_trl(model_of(_config("phi3", resid_pdrop=0.2))).train()
    reason = "dropout on the residual stream"
    report = _check(model, {(name, reason): 3 for name in BOTH})
    assert report.counts == {"attention": 3, "loss": 1}


def test_an_unknown_activation_keeps_its_mlp() -> None:
    model = scored_by_trl(model_of(_config("llama", hidden_act="relu")))
    report = _check(model, {("mlp_block", "unsupported activation ReLU"): 3})
    assert report.counts == {"attention_block": 3, "loss": 1}


def test_the_activation_is_the_modules_own_and_not_one_that_the_configuration_names() -> None:
    """Gemma's name for it in a Llama's config.json means nothing to a Llama."""
    _check(scored_by_trl(model_of(_config("llama", hidden_activation="gelu"))), {})


def test_a_soft_cap_that_the_family_does_not_use_is_not_used() -> None:
    """Gemma 3 reads it from its configuration, and stock leaves it at that."""
    _check(scored_by_trl(model_of(_config("gemma3", attn_logit_softcapping=5.0))), {})


@pytest.mark.parametrize("family", ["gemma2", "vaultgemma"])
def test_sdpa_that_ignores_the_soft_cap_is_not_ours(family: str) -> None:
    model = make_tuned(family, "full")
    model.config._attn_implementation_internal = "sdpa"
    reason = "SDPA ignores the soft cap of the attention scores"
    assert stock_attention_reason(model) == reason
    assert patch(model).report.unchanged == {("attention", reason): 1}
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
@pytest.mark.parametrize(
    ("place", "mechanism"),
    [
        ("self_attn.o_proj", "attention_block"),
        ("self_attn.q_proj", "attention_block"),
        ("self_attn.q_proj.lora_A.default", "attention_block"),
        ("self_attn.q_norm", "attention_block"),
        ("input_layernorm", "attention_block"),
        ("mlp.down_proj.base_layer", "mlp_block"),
        ("mlp.act_fn", "mlp_block"),
        ("post_attention_layernorm", "mlp_block"),
    ],
)
def test_what_somebody_hung_on_a_module_still_runs(kind: str, place: str, mechanism: str) -> None:
    model = make_tuned("qwen3", "lora")
    module = model.get_base_model().model.layers[1].get_submodule(place)
    runs: list[int] = []
    getattr(module, f"register_{kind}_hook")(lambda *_: runs.append(1))
    reason = f"{type(module).__name__} has hooks or a replaced forward"
    _check(model, {(mechanism, reason): 1})
    assert runs == [1, 1], "once in the stock step, once in ours"


def test_a_layer_with_a_forward_of_its_own_keeps_it() -> None:
    model = make_tuned("llama", "full")
    layer, calls = model.model.layers[2], []
    stock = layer.forward

    def own(*args: Untyped, **kwargs: Untyped) -> torch.Tensor:
        calls.append(1)
        result: torch.Tensor = stock(*args, **kwargs)
        return result

    layer.forward = own
    reason = "LlamaDecoderLayer has hooks or a replaced forward"
    report = _check(model, {(name, reason): 1 for name in BOTH})
    assert report.counts == {"attention": 1, "attention_block": 2, "mlp_block": 2, "loss": 1}
    assert len(calls) == 2


def test_a_norm_of_another_class_is_not_ours() -> None:
    model = make_tuned("llama", "full")
    model.model.layers[0].input_layernorm = torch.nn.LayerNorm(48)
    _check(model, {("attention_block", "LayerNorm replaces a module of LlamaDecoderLayer"): 1})


def test_norms_that_peft_trains_in_copies_are_not_ours() -> None:
    model = make_tuned("qwen3", "lora", modules_to_save=["q_norm"])
    reason = "ModulesToSaveWrapper replaces a module of Qwen3DecoderLayer"
    _check(model, {("attention_block", reason): 3})


def test_another_linear_class_is_not_ours() -> None:
    class Quantised(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.weight.detach().half().float(), self.bias)

    model = make_tuned("llama", "full")
    for layer in model.model.layers[:2]:
        layer.self_attn.k_proj.__class__ = Quantised
    layer.mlp.up_proj.__class__ = Quantised
    reason = "Quantised is not a plain linear layer"
    _check(model, {("attention_block", reason): 2, ("mlp_block", reason): 1})


@pytest.mark.parametrize("norm", ["input_layernorm", "post_attention_layernorm"])
def test_a_half_that_stays_stock_keeps_its_weights_where_they_were(norm: str) -> None:
    model = make_tuned("llama", "full")
    layer = model.model.layers[1]
    setattr(layer, norm, torch.nn.LayerNorm(48))
    half = layer.self_attn if norm == "input_layernorm" else layer.mlp
    before = {name: p.data_ptr() for name, p in half.named_parameters()}
    assert sum(patch(model).report.unchanged.values()) == 1
    assert {name: p.data_ptr() for name, p in half.named_parameters()} == before


def _dora() -> Untyped:
    return make_tuned("llama", "lora", use_dora=True)


def _biased() -> Untyped:
    return make_tuned("llama-bias", "lora", lora_bias=True)


def _merged() -> Untyped:
    model = make_tuned("llama", "lora")
    for module in model.modules():  # the other projections keep something to train
        if isinstance(module, peft.tuners.lora.Linear) and module.in_features == 48:
            module.merge()
    return model


def _two_adapters() -> Untyped:
    model = with_lora(make_model("llama"))
    model.add_adapter("second", model.peft_config["default"])
    model.base_model.set_adapter(["default", "second"])
    return scored_by_trl(model)


@pytest.mark.parametrize(
    ("make", "reason", "counts"),
    [
        (_dora, "LoRA variant DoraLinearVariant", BOTH),
        (_biased, "LoRA with a bias", BOTH),
        (_merged, "an adapter is merged", BOTH),
        (_two_adapters, "2 adapters are active", BOTH),
    ],
)
def test_adapters_that_are_more_than_plain_lora_are_not_ours(
    make: Callable[[], Untyped], reason: str, counts: dict[str, int]
) -> None:
    _check(make(), {(name, reason): count for name, count in counts.items()})


def test_other_kinds_of_adapters_are_not_ours() -> None:
    config = peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"], init_ia3_weights=False,
    )  # fmt: skip
    model = scored_by_trl(peft.get_peft_model(make_model("llama"), config))
    _check(model, {(name, "Linear is not a plain linear layer"): 3 for name in BOTH})


def test_labels_that_are_shifted_already_go_to_trl() -> None:
    model, batch = make_tuned("llama", "full"), packed_batch()
    batch["shift_labels"] = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    expected, gradients = run_step(model, batch)
    patch(model, ["loss"])
    ours, found = run_step(model, batch)
    assert ours.log_probs.shape == expected.log_probs.shape == batch["labels"].shape
    assert equal_bits(found, gradients)
