"""A patched model's weights lie side by side, and may be moved, replaced, saved and copied as
ever."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.patches.projections import FusedWeight

from .models import (
    assert_same_gradients,
    equal_bits,
    make_model,
    make_tuned,
    packed_batch,
    run_step,
    scored_by_trl,
    with_lora,
)

Untyped = Any  # Any: transformers and PEFT are not typed


def _other_weights(model: Untyped) -> dict[str, torch.Tensor]:
    return {name: x + 0.05 * torch.randn_like(x) for name, x in model.state_dict().items()}


def _assign(model: Untyped) -> None:
    model.load_state_dict(_other_weights(model), assign=True)


def _load(model: Untyped) -> None:
    model.load_state_dict(_other_weights(model))


def _double(model: Untyped) -> None:
    model.double()


def _replace_one(model: Untyped) -> None:
    projection = model.model.layers[1].self_attn.k_proj
    projection.weight = torch.nn.Parameter(projection.weight * 1.5)


def _move_one(model: Untyped) -> None:
    projection = model.model.layers[1].mlp.up_proj
    projection.weight.data = projection.weight.data * 1.5


def _step(model: Untyped) -> None:
    run_step(model, packed_batch())
    torch.optim.AdamW(model.parameters(), lr=1e-2).step()


@pytest.mark.parametrize("change", [_assign, _load, _double, _replace_one, _move_one, _step])
def test_weights_that_are_given_other_memory_or_values_are_the_ones_computed_with(
    change: Callable[[Untyped], None],
) -> None:
    model, batch = make_tuned("llama-bias", "full"), packed_batch()
    patched = patch(model)
    run_step(model, batch)
    torch.manual_seed(4)
    change(model)
    ours, found = run_step(model, batch)
    patched.undo()
    expected, gradients = run_step(model, batch)
    assert ours.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert_same_gradients(found, gradients)


def test_nothing_is_held_twice() -> None:
    """The projections of a half block are views of one tensor, before and after they moved."""
    model = make_tuned("llama", "full")
    patch(model)
    attention = model.model.layers[0].self_attn
    for change in (lambda: None, model.double):
        change()
        run_step(model, packed_batch())
        places = {
            getattr(attention, name).weight.untyped_storage().data_ptr()
            for name in ("q_proj", "k_proj", "v_proj")
        }
        assert len(places) == 1


def test_weights_of_two_dtypes_are_not_fused_until_they_are_of_one() -> None:
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 4)
    fused = FusedWeight([one, two])
    two.bfloat16()
    assert fused.get() is None
    assert (one.weight.dtype, two.weight.dtype) == (torch.float32, torch.bfloat16)
    one.bfloat16()
    whole = fused.get()
    assert whole is not None
    assert torch.equal(whole, torch.cat([one.weight, two.weight]))


@pytest.mark.parametrize("family", ["qwen3", "llama"])  # the second has a tied head: one copy
def test_a_full_model_is_saved_to_the_same_bytes(tmp_path: Path, family: str) -> None:
    model = make_model(family)
    model.save_pretrained(tmp_path / "before")
    scored_by_trl(model)
    patched = patch(model)
    model.save_pretrained(tmp_path / "patched")
    patched.undo()
    model.save_pretrained(tmp_path / "undone")
    for name in ("patched", "undone"):
        files = sorted(path.name for path in (tmp_path / "before").iterdir())
        assert files == sorted(path.name for path in (tmp_path / name).iterdir())
        for file in files:
            same = (tmp_path / "before" / file).read_bytes()
            assert (tmp_path / name / file).read_bytes() == same, file


def test_the_name_of_our_attention_is_never_written(tmp_path: Path) -> None:
    """A stock transformers would not know it."""
    model = make_tuned("gemma2", "lora")
    patch(model)
    model.save_pretrained(tmp_path / "adapter")
    model.get_base_model().save_pretrained(tmp_path / "base")
    for path in tmp_path.rglob("*.json"):
        assert "tunesmith" not in path.read_text(encoding="utf-8"), path
    assert "tunesmith" not in json.dumps(model.get_base_model().config.to_dict(), default=str)


def test_an_adapter_is_saved_to_the_same_bytes(tmp_path: Path) -> None:
    model = make_tuned("phi3", "lora")
    model.save_pretrained(tmp_path / "before")
    patch(model)
    model.save_pretrained(tmp_path / "patched")
    for path in (tmp_path / "before").iterdir():
        assert (tmp_path / "patched" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_pickled_model_comes_back_unpatched() -> None:
    """Nothing of ours pickles a model; who does gets what the class makes of the weights."""
    model, batch = make_model("llama"), packed_batch()
    expected = model(input_ids=batch["input_ids"]).logits
    patch(model, ["attention_block", "mlp_block"])
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(input_ids=batch["input_ids"]).logits, expected)
    ours = run_step(scored_by_trl(model), batch)[1]
    assert_same_gradients(run_step(scored_by_trl(again), batch)[1], ours)


def test_a_copy_is_taken_of_a_model_that_is_not_patched() -> None:
    """A copied forward computes with the weights of the model that it was copied from."""
    model, batch = make_tuned("llama", "full"), packed_batch()
    patched = patch(model)
    with pytest.raises(RuntimeError, match="undo the patches before copying a model"):
        run_step(copy.deepcopy(model), batch)
    expected = run_step(model, batch)[1]
    patched.undo()
    other = copy.deepcopy(model)
    patch(other)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert equal_bits(run_step(other, batch)[1], expected)


def test_one_patched_model_changes_no_other() -> None:
    batch = packed_batch()
    model, other = make_tuned("llama", "full"), make_tuned("llama", "full")
    expected = run_step(other, batch)
    patched = patch(model)
    assert equal_bits(run_step(other, batch)[1], expected[1])
    assert other.config._attn_implementation == "sdpa"
    patch(other)
    patched.undo()
    assert_same_gradients(run_step(other, batch)[1], expected[1])
    assert equal_bits(run_step(model, batch)[1], expected[1])


def test_patching_twice_is_refused_and_leaves_the_first() -> None:
    model, batch = make_tuned("llama", "full"), packed_batch()
    stock = run_step(model, batch)[1]
    first = patch(model)
    ours = run_step(model, batch)[1]
    with pytest.raises(ValueError, match="already patched: undo its patches first"):
        patch(model)
    assert equal_bits(run_step(model, batch)[1], ours)
    first.undo()
    assert equal_bits(run_step(model, batch)[1], stock)


def test_a_failure_halfway_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_tuned("llama", "full"), packed_batch()
    stock = run_step(model, batch)[1]

    def broken(model: Untyped) -> None:
        raise RuntimeError("no head")

    monkeypatch.setattr(sys.modules[patch.__module__], "HeadPatch", broken)
    with pytest.raises(RuntimeError, match="no head"):
        patch(model)
    assert "forward" not in vars(model.model)
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    assert model.config._attn_implementation == "sdpa"
    assert equal_bits(run_step(model, batch)[1], stock)


def test_the_type_of_adapter_that_peft_makes_is_the_one_we_read() -> None:
    model = with_lora(make_model("llama"))
    assert type(model.get_base_model().model.layers[0].mlp.up_proj) is peft.tuners.lora.Linear


def test_a_gpu_gets_the_memory_of_unfused_weights_back_after_the_last_fusion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's allocator would keep it: for an 8B model 9 GB."""
    model, calls, fuse = with_lora(make_model("llama")), [], FusedWeight._fuse

    def noted(weight: FusedWeight) -> None:
        calls.append("fuse")
        fuse(weight)

    monkeypatch.setattr(FusedWeight, "_fuse", noted)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    patch(model).undo()
    assert set(calls) == {"fuse"}, "a CPU has no such memory"
    layers, calls = calls, []
    cuda = property(lambda _: torch.device("cuda"))
    monkeypatch.setattr(type(model.get_base_model()), "device", cuda)
    patch(model)
    assert calls == [*layers, "empty"]
