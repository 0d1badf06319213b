"""Token rows that train, the embedding and the head whole, a row of zeros: stock PEFT's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tunesmith_worker.engine.patches import patch

from .models import (
    FAMILIES,
    assert_same_gradients,
    equal_bits,
    make_model,
    model_of,
    packed_batch,
    relative_rms,
    run_step,
    scored_by_trl,
    with_lora,
)

Untyped = Any  # Any: transformers and PEFT are not typed

ROWS = [130, 0, 77, 5]  # not in order; 0 is every config's pad_token_id, so padding_idx


def _tuned(
    family: str, *, tied: bool, dtype: torch.dtype = torch.float32, **settings: Untyped
) -> Untyped:
    config = FAMILIES[family]()
    config.tie_word_embeddings = tied
    model = with_lora(model_of(config).to(dtype), **settings)
    if "trainable_token_indices" in settings:
        # TRL asks for it, and PEFT's wrapper of rows does not hand it on
        model.get_base_model().get_output_embeddings().bias = None
        for name, parameter in model.named_parameters():
            if "trainable_tokens_delta" in name:
                parameter.data = parameter.data.float() * 0.9
    return scored_by_trl(model)


def _rows(tied: bool) -> dict[str, list[int]]:
    return {"embed_tokens": ROWS} if tied else {"embed_tokens": ROWS, "lm_head": ROWS}


def _batch() -> dict[str, Untyped]:
    """Every trained row is read, and is to be said."""
    batch = packed_batch()
    batch["input_ids"][0, 3:11] = torch.tensor([*ROWS, *ROWS])
    batch["labels"][0, 3:11] = torch.tensor([*ROWS, *ROWS])
    return batch


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma2", "granite", "qwen3"])
def test_token_rows_get_the_gradients_of_peft(family: str, tied: bool) -> None:
    model, batch = _tuned(family, tied=tied, trainable_token_indices=_rows(tied)), _batch()
    expected, gradients = run_step(model, batch)
    assert sum("trainable_tokens_delta" in name for name in gradients) == (1 if tied else 2)
    report = patch(model).report
    assert (dict(report.unchanged), report.counts["token_rows"]) == ({}, 1)
    ours, found = run_step(model, batch)
    assert ours.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert_same_gradients(found, gradients)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_no_matrix_is_copied_for_token_rows(tied: bool) -> None:
    """PEFT's own forward and backward make several tensors as large as the matrix."""
    model, batch = _tuned("llama", tied=tied, trainable_token_indices=_rows(tied)), _batch()
    size = model.get_base_model().get_input_embeddings().token_adapter.base_layer.weight.shape

    def count() -> int:
        made = 0

        class Count(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Untyped, kinds: Untyped, args: Untyped = (), kwargs: Untyped = None
            ) -> Untyped:
                nonlocal made
                out = func(*args, **(kwargs or {}))
                fresh = isinstance(out, torch.Tensor) and not func.is_view
                made += fresh and out.shape == size
                return out

        with Count():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            run_step(model, batch)
        return made

    assert count() >= 2
    patch(model)
    assert count() == 0


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_bf16_token_rows_err_no_more_than_one_and_a_half_times_peft(tied: bool) -> None:
    batch = _batch()
    found = {}
    for name, dtype in (("truth", torch.float64), ("stock", None), ("ours", None)):
        settings = {"trainable_token_indices": _rows(tied)}
        model = _tuned("llama", tied=tied, dtype=torch.bfloat16, **settings).to(dtype)
        if name == "ours":
            patch(model)
        found[name] = run_step(model, batch)[1]
    for name in found["truth"]:
        if "trainable_tokens" not in name:
            continue
        assert found["ours"][name].dtype == torch.float32
        stock, ours = (
            relative_rms(found[side][name], found["truth"][name]) for side in ("stock", "ours")
        )
        assert ours <= 1.5 * stock, f"{name}: {ours:.1e} against {stock:.1e}"


@pytest.mark.parametrize(
    ("tied", "names"),
    [
        (True, ["embed_tokens"]),
        (False, ["embed_tokens"]),
        (False, ["lm_head"]),
        (False, ["embed_tokens", "lm_head"]),
    ],
    ids=["tied", "embedding", "head", "both"],
)
def test_whole_matrices_get_the_gradients_of_peft(tied: bool, names: list[str]) -> None:
    settings: dict[str, Untyped] = {"modules_to_save": list(names), "ensure_weight_tying": tied}
    model, batch = _tuned("llama", tied=tied, **settings), _batch()
    expected, gradients = run_step(model, batch)
    assert sum("modules_to_save" in name for name in gradients) == len(names)
    assert not patch(model).report.unchanged
    ours, found = run_step(model, batch)
    assert ours.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert_same_gradients(found, gradients)
    again = run_step(model, batch)[1]
    assert equal_bits(again, found)


def test_an_adapter_that_is_off_or_merged_has_no_rows_of_its_own() -> None:
    model, batch = _tuned("llama", tied=True, trainable_token_indices=_rows(True)), _batch()

    def loss() -> float:
        return float(model(**batch, fused_lm_head=True).loss.item())

    with model.disable_adapter():
        base = loss()
    adapted = loss()
    assert abs(adapted - base) > 1e-3
    patched = patch(model)
    with model.disable_adapter():
        assert loss() == pytest.approx(base, rel=1e-6)
    assert loss() == pytest.approx(adapted, rel=1e-6)
    model.merge_adapter()
    assert loss() == pytest.approx(adapted, rel=1e-5)
    model.unmerge_adapter()
    patched.undo()
    assert "forward" not in vars(model.get_base_model().get_input_embeddings().token_adapter)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_e6_a_row_of_zeros_gives_no_nan(family: str) -> None:
    """RMSNorm of 0 has a gradient of 1 / sqrt(eps) times what comes in: large, and finite."""
    model, batch = make_model(family), _batch()
    with torch.no_grad():
        model.get_input_embeddings().weight[ROWS] = 0.0
    model = scored_by_trl(model)
    expected, gradients = run_step(model, batch)
    patch(model)
    ours, found = run_step(model, batch)
    for loss, grads in ((expected.loss, gradients), (ours.loss, found)):
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in grads.values())
    assert ours.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert_same_gradients(found, gradients)
