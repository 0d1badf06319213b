"""Model FLOPs against torch's own counter; peaks by the names that drivers give."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from tunesmith_worker.trainer.report.flops import FlopsShape, model_shape, peak_tflops

ROWS, LENGTH = 2, 64


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{
            **{"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512},
            **changes,
        },
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


def counted(model: Any) -> int:
    """FLOPs of the matrix products of one step."""
    ids = torch.randint(0, 512, (ROWS, LENGTH))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    return int(counter.get_total_flops())


def shape_of(model: Any, *, full: bool) -> FlopsShape:
    shape = model_shape(model, full=full)
    assert isinstance(shape, FlopsShape), shape
    return shape


def test_full_training_is_what_torch_counts() -> None:
    model = llama()
    shape = shape_of(model, full=True)
    assert shape.base == sum(
        p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n
    )
    # Eager attention computes both halves of the pairs, the formula counts one.
    ours = shape.flops(ROWS * LENGTH, 2 * 4 * ROWS * LENGTH**2)
    assert ours == pytest.approx(counted(model), rel=0.01)


def test_lora_needs_no_gradients_of_frozen_weights() -> None:
    lora = peft.LoraConfig(r=4, target_modules="all-linear")
    model = peft.get_peft_model(llama(num_hidden_layers=12), lora)
    shape = shape_of(model, full=False)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert shape.adapter == trainable
    ours = shape.flops(ROWS * LENGTH, 2 * 12 * ROWS * LENGTH**2)
    # The first layer's inputs need no gradient, which the formula leaves out of account.
    assert ours == pytest.approx(counted(model), rel=0.04)
    assert ours > counted(model)


def test_a_tied_head_counts_and_the_lookup_does_not() -> None:
    tied, apart = llama(tie_word_embeddings=True), llama(tie_word_embeddings=False)
    assert shape_of(tied, full=True).base == shape_of(apart, full=True).base


def test_a_head_that_trains_beside_an_adapter_counts_once() -> None:
    lora = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    plain, whole = llama(), peft.get_peft_model(llama(), lora)
    head = plain.lm_head.weight.numel()
    found = shape_of(whole, full=False)
    adapter = sum(p.numel() for n, p in whole.named_parameters() if ".lora_" in n)
    assert found.base == shape_of(plain, full=True).base - head
    assert found.adapter == adapter + head


def test_what_cannot_be_counted_says_why() -> None:
    small = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32)
    gpt2 = transformers.GPT2LMHeadModel(small)
    assert "not torch.nn.Linear" in str(model_shape(gpt2, full=True))
    experts = transformers.MixtralConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=32,
        num_local_experts=2,
    )
    model = transformers.MixtralForCausalLM(experts)
    assert "mixture of experts" in str(model_shape(model, full=True))


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10G", None),
        ("NVIDIA A10", 125.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.1),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("Tesla T4", None),
        ("cpu", None),
    ],
)
def test_a_peak_is_known_for_exactly_that_card(name: str, tflops: float | None) -> None:
    assert peak_tflops(name) == tflops
