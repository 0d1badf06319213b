"""E2: rows that were never trained are found, started and trained as rows, nothing else moves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

from .conftest import MakeBase, adapter_numbers, assert_gives_the_probe, load

FAST = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-1,
    "lora": {"r": 2},
    "adapter_dtype": "fp32",
}
EMPTY = ("<|im_start|>", "<|im_end|>", "</s>")  # the data never says </s>
USED = EMPTY[:2]
H = 32


def messages(run: Path, about: str) -> list[str]:
    return [event.message for event in read_events(run) if about in event.message]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("patches", ["auto", "off"])
def test_e2_empty_rows_of_the_template_are_trained_as_rows(
    make_run: MakeRun, make_base: MakeBase, tied: bool, patches: str
) -> None:
    recipe = {**FAST, "patches": patches}
    base, whole = make_base(tied=tied, zero=EMPTY), make_base(tied=tied)
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(base))
    other = make_run(QUESTIONS, recipe=recipe, model_path=str(whole), name="whole")
    assert [main(run), main(other)] == [0, 0]
    assert all(loss < 20 for loss in losses(run))

    matrices = 1 if tied else 2
    assert adapter_numbers(run) - adapter_numbers(other) == matrices * len(USED) * H
    (said,) = messages(run, "never learned")
    assert "2 of the tokens in the data: '<|im_start|>' (1), '<|im_end|>' (2)" in said
    (price,) = messages(run, "token rows of")
    assert f"{matrices * 2 * H * 4:,} bytes to the adapter" in price
    assert f"{matrices * 2 * H * 16:,} bytes of memory" in price
    assert not messages(other, "never learned")

    stock = load(base)
    tuned = load(base, run / "adapter")
    assert_gives_the_probe(tuned, run / "adapter")
    merged = tuned.merge_and_unload()
    for name in ("get_input_embeddings", "get_output_embeddings"):
        before, after = getattr(stock, name)().weight, getattr(merged, name)().weight
        changed = (before != after).any(1).nonzero()[:, 0].tolist()
        assert changed == [1, 2]
        assert (after[[1, 2]].norm(dim=1) > 0.01).all()
    assert_gives_the_probe(merged, run / "adapter")


def test_patched_and_stock_train_the_same_rows(make_run: MakeRun, make_base: MakeBase) -> None:
    base, found = make_base(tied=False, zero=EMPTY), []
    for patches in ("auto", "off"):
        recipe = {**FAST, "max_steps": 4, "patches": patches}
        run = make_run(QUESTIONS, recipe=recipe, model_path=str(base), name=patches)
        assert main(run) == 0
        found.append(losses(run))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_rows_start_from_the_mean_of_the_trained_ones(
    make_run: MakeRun, make_base: MakeBase
) -> None:
    base = make_base(tied=False, zero=EMPTY)
    recipe = {**FAST, "max_steps": 1, "learning_rate": 1e-9}
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    merged = load(base, run / "adapter").merge_and_unload()
    for name in ("get_input_embeddings", "get_output_embeddings"):
        weight = getattr(load(base), name)().weight
        mean = weight[weight.norm(dim=1) > 0].mean(0)
        for row in (1, 2):
            torch.testing.assert_close(
                getattr(merged, name)().weight[row], mean, rtol=1e-5, atol=1e-6
            )


def test_rows_have_a_tenth_of_the_rate(make_run: MakeRun, make_base: MakeBase) -> None:
    base = make_base(tied=True, zero=EMPTY)
    given = make_run(
        QUESTIONS,
        recipe={**FAST, "embedding_learning_rate": 3e-2},
        model_path=str(base),
        name="given",
    )
    run = make_run(QUESTIONS, recipe={**FAST, "max_steps": 4}, model_path=str(base))
    assert [main(given), main(run)] == [0, 0]
    (choice,) = [c for c in event_data(run, EventKind.CHOICE) if "embedding" in c["name"]]
    assert (choice["value"], choice["reason"]) == (1e-2, "a tenth of learning_rate")
    for folder, share in ((run, 0.1), (given, 0.3)):
        for point in event_data(folder, EventKind.METRICS):
            expected = pytest.approx(share * point["learning_rate"])
            assert point["embedding_learning_rate"] == expected


def test_full_tuning_starts_empty_rows_and_keeps_one_rate(
    make_run: MakeRun, make_base: MakeBase
) -> None:
    recipe = {"tuning": "full", "max_steps": 1, "per_device_train_batch_size": 4}
    base = make_base(tied=True, zero=EMPTY)
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    assert len(messages(run, "never learned")) == 1
    assert load(run / "adapter").get_input_embeddings().weight[1].norm() > 0.01
    (point,) = event_data(run, EventKind.METRICS)
    assert "embedding_learning_rate" not in point


def test_the_end_of_text_learns_although_it_is_the_padding(
    make_run: MakeRun, make_base: MakeBase
) -> None:
    """torch gives the row of padding_idx no gradient: the embedding's copy of it would not move."""
    base = make_base(tied=False, zero=("<|im_end|>",), pad_is_eos=True)
    moved = []
    for rate in (1e-9, 1e-1):
        recipe = {**FAST, "max_steps": 2, "embedding_learning_rate": rate}
        run = make_run(QUESTIONS, recipe=recipe, model_path=str(base), name=f"rate-{rate}")
        assert main(run) == 0
        merged = load(base, run / "adapter").merge_and_unload()
        moved.append(merged.get_input_embeddings().weight[2].detach())
    assert (moved[0] - moved[1]).abs().max() > 1e-2


def test_a_run_that_has_no_such_row_says_nothing_of_rows(
    make_run: MakeRun, tiny_model: Path
) -> None:
    """The tiny model's padding row is empty, and no text holds it."""
    assert not load(tiny_model).get_input_embeddings().weight[0].any()
    run = make_run(QUESTIONS, recipe=FAST)
    assert main(run) == 0
    assert not [event for event in read_events(run) if "token rows" in event.message]
    assert read_result(run).outcome == "succeeded"


def test_on_a_bf16_base_rows_train_in_fp32(make_run: MakeRun, make_base: MakeBase) -> None:
    """A hundredth of a bf16 unit at a time would be rounded away."""
    recipe = {**FAST, "precision": "bf16", "learning_rate": 1e-4}
    base = make_base(tied=True, zero=EMPTY)
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    weights = load_file(run / "adapter" / "adapter_model.safetensors")
    (rows,) = [weight for name, weight in weights.items() if "trainable_tokens" in name]
    assert (rows != rows.bfloat16().float()).float().mean() > 0.9
