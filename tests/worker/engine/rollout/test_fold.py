"""An adapter folded into the training weights comes out again to the last bit."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import COMMON, make_model, model_of, with_lora
from tunesmith_kernels.lora import Adapter
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.rollout import NativeEngine, Request, UnsupportedModel
from tunesmith_worker.engine.rollout.architecture import read_architecture
from tunesmith_worker.engine.rollout.fold import UnfoldError, delta_rows, folded
from tunesmith_worker.engine.rollout.weights import decoder_weights

from .rollouts import engine_of

Untyped = Any  # Any: transformers is not typed


def _hash(model: Untyped) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _pair(dtype: torch.dtype, size: float = 1.0) -> tuple[torch.Tensor, Adapter]:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(70, 50, generator=draw).to(dtype)
    weight[0, :4] = torch.tensor([0.0, -0.0, 1e-30, 3e4], dtype=dtype)
    a, b = torch.randn(8, 50, generator=draw), torch.randn(70, 8, generator=draw) * size
    return weight, Adapter(a=a, b=b, scale=0.7, dropout=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 1e-3, 0.0])
def test_weights_hold_the_sum_inside_and_their_own_bits_after(
    dtype: torch.dtype, size: float
) -> None:
    weight, adapter = _pair(dtype, size)
    before = weight.clone()
    with folded([(weight, adapter)]) as figures:
        expected = (before.float() + delta_rows(adapter)).to(dtype)
        assert torch.equal(weight, expected)
        assert figures.weights == weight.numel()
    assert torch.equal(weight.view(torch.uint8), before.view(torch.uint8))
    if size == 1.0:
        back = (expected.float() - delta_rows(adapter)).to(dtype)
        assert figures.saved >= int((back != before).sum()) > 0, "subtracting alone loses bits"


def test_a_matrix_of_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith_worker.engine.rollout.fold._CHUNK", 500)
    weight, adapter = _pair(torch.bfloat16)
    before = weight.clone()
    with folded([(weight, adapter)]):
        expected = (before.float() + delta_rows(adapter)).to(weight.dtype)
        assert torch.allclose(weight.float(), expected.float(), rtol=1e-2)
    assert torch.equal(weight.view(torch.uint8), before.view(torch.uint8))


def test_an_error_inside_unfolds_all_the_same() -> None:
    weight, adapter = _pair(torch.float32)
    before = weight.clone()
    with pytest.raises(RuntimeError, match="out of memory"), folded([(weight, adapter)]):
        raise RuntimeError("out of memory")
    assert torch.equal(weight, before)


def test_a_change_of_adapter_or_weight_in_between_is_told() -> None:
    for change in ("adapter", "weight"):
        weight, adapter = _pair(torch.float32)
        with (
            pytest.raises(UnfoldError, match="changed the weight's bits"),
            folded([(weight, adapter)]),
        ):
            (adapter.b if change == "adapter" else weight).add_(0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_thousand_rollouts_leave_every_weight_as_it_was(dtype: torch.dtype) -> None:
    """Every fiftieth rollout samples tokens; the others only fold and unfold the adapter. The model
    is patched as in training, so that its weights are views of fused weights."""
    config = transformers.LlamaConfig(**COMMON | {"num_hidden_layers": 1})
    model = with_lora(model_of(config).to(dtype).eval())
    patch(model, ["attention_block", "mlp_block"])
    before = _hash(model)
    engine = engine_of(model, "in_place")
    request = Request(prompt_ids=(4, 9), max_tokens=2, seed=0)
    first = engine.generate([request])
    assert engine.figures.fold_saved > 0
    read = read_architecture(model)
    for number in range(1000):
        if number % 50 == 0:
            assert engine.generate([request]) == first
        else:
            with decoder_weights(read, "in_place", 1):
                assert number % 99 or _hash(model) != before
    assert _hash(model) == before


def test_a_failing_rollout_unfolds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_lora(make_model("llama"))
    before = _hash(model)
    engine: NativeEngine = engine_of(model, "in_place")

    def failing(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("tunesmith_worker.engine.rollout.decoder.Decoder.step", failing)
    with pytest.raises(RuntimeError, match="no memory"):
        engine.generate([Request(prompt_ids=(4,), max_tokens=3, seed=0)])
    assert _hash(model) == before


def test_an_adapter_over_a_tied_head_is_merged_and_not_folded() -> None:
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        model = with_lora(make_model("llama"), target_modules=["q_proj", "lm_head"])
    request = Request(prompt_ids=(4, 5), max_tokens=3, seed=0)
    engine_of(model, "merged").generate([request])
    with pytest.raises(
        UnsupportedModel, match="shares its weights with the embedding, so an adapter"
    ):
        engine_of(model, "in_place").generate([request])
