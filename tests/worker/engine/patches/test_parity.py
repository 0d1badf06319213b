"""A patched model against the same model unpatched: loss, every gradient, and back again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
import torch

from tunesmith_worker.engine.patches import MECHANISMS, PatchReport, patch
from tunesmith_worker.engine.patches.decoder import DecoderLayerPatch
from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE

from .models import (
    FAMILIES,
    assert_same_gradients,
    equal_bits,
    make_model,
    make_tuned,
    packed_batch,
    relative_rms,
    run_step,
)

Untyped = Any  # Any: transformers and TRL are not typed
Gradients = dict[str, torch.Tensor]

SUBSETS = [frozenset(names) for n in range(1, 5) for names in combinations(sorted(MECHANISMS), n)]


@pytest.mark.parametrize("broken", ["ours", "stock"])
def test_a_gradient_of_nan_is_unequal_wherever_it_stands(broken: str) -> None:
    sides = {side: {name: torch.ones(3) for name in "abc"} for side in ("ours", "stock")}
    assert_same_gradients(sides["ours"], sides["stock"])
    sides[broken]["b"].fill_(torch.nan)
    with pytest.raises(AssertionError, match=r"^b: inf"):
        assert_same_gradients(sides["ours"], sides["stock"])


@dataclass(frozen=True, kw_only=True)
class Runs:
    """One step of one model: as it came, patched, and with the patches taken out again."""

    stock: tuple[Untyped, Gradients]
    ours: tuple[Untyped, Gradients]
    undone: tuple[Untyped, Gradients]
    report: PatchReport
    model: Untyped


@pytest.fixture(
    scope="module", params=[(f, t) for f in FAMILIES for t in ("lora", "full")], ids=str
)
def runs(request: pytest.FixtureRequest) -> Runs:
    model, batch = make_tuned(*request.param), packed_batch()
    stock = run_step(model, batch)
    patched = patch(model)
    ours = run_step(model, batch)
    patched.undo()
    patched.undo()  # twice is as good as once
    undone = run_step(model, batch)
    return Runs(stock=stock, ours=ours, undone=undone, report=patched.report, model=model)


def test_every_layer_of_every_family_is_ours(runs: Runs) -> None:
    assert runs.report.counts == {"attention_block": 3, "mlp_block": 3, "loss": 1}
    assert not runs.report.unchanged


def test_gradients_equal_stock_and_are_large_enough_to_tell(runs: Runs) -> None:
    expected = runs.stock[1]
    sizes = sorted(float(one.square().mean().sqrt()) for one in expected.values())
    assert sizes[len(sizes) // 2] >= 1e-2
    assert sizes[0] >= 2e-3
    assert_same_gradients(runs.ours[1], expected)


def test_the_loss_and_what_is_logged_equal_stock(runs: Runs) -> None:
    ours, stock = runs.ours[0], runs.stock[0]
    assert ours.loss.item() == pytest.approx(stock.loss.item(), rel=1e-6)
    for field in ("log_probs", "entropy"):
        assert relative_rms(ours[field].detach(), stock[field].detach()) <= 1e-5
    assert torch.equal(ours.is_top1, stock.is_top1)
    assert torch.equal(ours.label_mask, stock.label_mask)


def test_undo_gives_back_the_same_bits_in_memory_of_their_own(runs: Runs) -> None:
    assert runs.undone[0].loss.item() == runs.stock[0].loss.item()
    assert equal_bits(runs.undone[1], runs.stock[1])
    for name, parameter in runs.model.named_parameters():
        size = parameter.numel() * parameter.element_size()
        assert parameter.untyped_storage().nbytes() == size, name
    assert not [
        m
        for m in runs.model.modules()
        if "DecoderLayer" in type(m).__name__ and "forward" in vars(m)
    ]


@pytest.mark.parametrize("wanted", SUBSETS, ids=lambda one: "+".join(sorted(one)))
def test_any_subset_equals_stock(wanted: frozenset[str]) -> None:
    """Stock layers around our attention, half a layer ours and half stock, the loss alone."""
    _check_subset("llama", wanted)


@pytest.mark.parametrize(
    "family", ["mistral", "qwen3", "gemma2", "gemma3", "phi3", "granite", "olmo2", "smollm3"]
)
@pytest.mark.parametrize(
    "wanted", [{"attention"}, {"attention_block"}, {"mlp_block"}], ids=lambda one: "+".join(one)
)
def test_stock_halves_of_every_family_take_our_attention(family: str, wanted: set[str]) -> None:
    """Windows, soft caps and scales as the family's own attention hands them to the registry."""
    _check_subset(family, frozenset(wanted))


def _check_subset(family: str, wanted: frozenset[str]) -> None:
    model, batch = make_tuned(family, "lora"), packed_batch()
    expected, gradients = run_step(model, batch)
    report = patch(model, wanted).report
    ours, found = run_step(model, batch)
    assert ours.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert_same_gradients(found, gradients)
    blocks = wanted & {"attention_block", "mlp_block"}
    assert {name for name in blocks if report.counts[name] == 3} == blocks
    stock_halves = bool(wanted - {"loss"}) and "attention_block" not in wanted
    assert report.counts["attention"] == (3 if stock_halves else 0)
    assert report.counts["loss"] == ("loss" in wanted)
    assert not report.unchanged


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    model = make_model("llama")
    with pytest.raises(ValueError, match=r"unknown patches \['rope'\].*attention_block"):
        patch(model, ["rope", "loss"])
    assert "forward" not in vars(model)


CHECKPOINTED = [("lora", 0.0), ("lora", 0.3), ("full", 0.0)]


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize(("tuning", "dropout"), CHECKPOINTED)
@pytest.mark.parametrize("wanted", [{"attention_block", "mlp_block"}, {"attention", "mlp_block"}])
def test_gradient_checkpointing_recomputes_each_layer_once_to_the_same_bits(
    reentrant: bool, tuning: str, dropout: float, wanted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with dropout: the recomputed layer draws the masks of its forward."""
    lora = {"lora_dropout": dropout} if tuning == "lora" else {}
    model, batch = make_tuned("qwen3", tuning, **lora), packed_batch()
    model.train()
    patch(model, wanted)
    torch.manual_seed(3)
    expected, after = run_step(model, batch), torch.get_rng_state()

    computed: list[DecoderLayerPatch] = []
    stock_run = DecoderLayerPatch.run

    def counted(self: DecoderLayerPatch, *args: Untyped, **kwargs: Untyped) -> torch.Tensor:
        computed.append(self)
        return stock_run(self, *args, **kwargs)

    monkeypatch.setattr(DecoderLayerPatch, "run", counted)
    run_step(model, batch)
    assert len(computed) == len(set(computed)) == 3
    getattr(model, f"{RECOMPUTE}_enable")({"use_reentrant": reentrant})
    torch.manual_seed(3)
    recomputed = run_step(model, batch)
    assert len(computed) == 3 + 6, "each of three layers once, and once more in backward"
    assert recomputed[0].loss.item() == expected[0].loss.item()
    assert equal_bits(recomputed[1], expected[1])
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_rows_take_the_stock_path_bit_for_bit(family: str) -> None:
    """No segments, so nothing of ours but the memory its weights lie in."""
    model = make_tuned(family, "full")
    lengths = torch.tensor([13, 1, 20])
    mask = (torch.arange(20) < lengths[:, None]).long()
    ids = torch.randint(3, 131, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    for side in (mask, mask.flip(1)):  # padded on the right, and on the left
        batch = {
            "input_ids": ids if side is mask else ids.flip(1),
            "attention_mask": side,
            "labels": ids.masked_fill(mask == 0, -100),
        }
        expected = run_step(model, batch)
        logits = model(batch["input_ids"], attention_mask=side).logits
        patched = patch(model, MECHANISMS - {"loss"})
        found = run_step(model, batch)
        assert found[0].loss.item() == expected[0].loss.item()
        assert equal_bits(found[1], expected[1])
        assert torch.equal(model(batch["input_ids"], attention_mask=side).logits, logits)
        patched.undo()


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "phi3", "olmo2"])
def test_generation_with_a_cache_is_stock_bit_for_bit(family: str) -> None:
    model = make_tuned(family, "lora").eval()
    prompt = torch.arange(3, 15)[None]
    settings = {
        "max_new_tokens": 6, "do_sample": False, "output_logits": True, "eos_token_id": None,
        "return_dict_in_generate": True, "attention_mask": torch.ones_like(prompt),
    }  # fmt: skip
    expected = model.generate(input_ids=prompt, **settings)
    patch(model)
    run_step(model, packed_batch())  # a training step in between leaves nothing behind
    found = model.generate(input_ids=prompt, **settings)
    assert torch.equal(found.sequences, expected.sequences)
    for one, other in zip(found.logits, expected.logits, strict=True):
        assert torch.equal(one, other)
