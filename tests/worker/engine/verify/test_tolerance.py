"""The tolerance covers the rounding of another computation, and little more."""

from __future__ import annotations

import pytest
import torch
import transformers

from tunesmith_schema.verification import Arithmetic
from tunesmith_worker.engine.model.probe import run_probe
from tunesmith_worker.engine.verify.compare import ResultMismatch, compare_logits
from tunesmith_worker.engine.verify.tolerance import coarser, tolerance


def small_model() -> transformers.PreTrainedModel:
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=parameter.shape[-1] ** -0.5)  # activations of about 1
    return model


@pytest.mark.parametrize(
    ("arithmetic", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_rounding_is_within_the_tolerance_and_not_far_below(
    arithmetic: Arithmetic, dtype: torch.dtype
) -> None:
    model = small_model()
    ids = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(1))
    rounded = run_probe(model.to(dtype), ids)
    exact = run_probe(model.double(), ids)  # of the same weights
    error = float((rounded - exact).abs().max())
    largest = tolerance(model, rounded, arithmetic)
    assert largest / 100 < error < largest


def test_a_difference_or_nan_beyond_the_tolerance_is_a_mismatch() -> None:
    logits = torch.randn(1, 8, 16)
    assert compare_logits(logits, logits, 0.0) == 0
    for wrong in (logits + 1e-3, logits * float("nan"), logits[:, :4]):
        with pytest.raises(ResultMismatch):
            compare_logits(wrong, logits, 1e-4)


def test_the_coarser_arithmetic_decides() -> None:
    assert coarser("fp32", "tf32") == "tf32"
    assert coarser("bf16", "tf32") == "bf16"
