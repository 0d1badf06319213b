"""E3: the embedding and the head as whole matrices cost a consent, which is told the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_result
from tunesmith_schema import ErrorCode, EventKind, LoraRecipe, Recipe
from tunesmith_worker.engine.model.adapters import attach_lora
from tunesmith_worker.engine.model.embeddings import embedding_parameters, set_learning_rate
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices
from tunesmith_worker.trainer.run import main

from .conftest import MakeBase, assert_gives_the_probe, load
from .eight_billion import eight_billion
from .test_new_tokens import ROWS, TOKENS
from .test_token_rows import FAST

BOTH = ["q_proj", "embed_tokens", "lm_head"]


def _recipe(targets: list[str], **changes: Any) -> dict[str, Any]:  # Any: JSON
    return {**FAST, "lora": {"r": 2, "target_modules": targets}, **changes}


def test_e3_the_refusal_of_an_8b_model_says_what_both_matrices_would_cost() -> None:
    recipe = Recipe(lora=LoraRecipe(r=16, target_modules=BOTH))
    with pytest.raises(RunError) as caught:
        attach_lora(eight_billion(), recipe, Choices())
    failure = caught.value.failure
    assert (failure.code, failure.param) == (
        ErrorCode.RECIPE_INVALID,
        "recipe.allow_full_embeddings",
    )
    assert "model.embed_tokens 128,256 x 4,096 and lm_head 128,256 x 4,096" in failure.message
    assert "2.1 GB more in the adapter on disk and 16.8 GB in memory" in failure.message
    assert "(weights 4.2 GB, gradient 4.2 GB, Adam 8.4 GB)" in failure.message
    assert "recipe.allow_full_embeddings=true" in (failure.hint or "")


@pytest.mark.parametrize(("tied", "target"), [(True, "lm_head"), (False, "model.embed_tokens")])
def test_e3_a_job_without_consent_is_refused(
    make_run: MakeRun, make_base: MakeBase, tied: bool, target: str
) -> None:
    run = make_run(QUESTIONS, recipe=_recipe([target]), model_path=str(make_base(tied=tied)))
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.param == "recipe.allow_full_embeddings"
    # fp32 on disk, 16 bytes a number in memory; a tied matrix is saved under both names
    copies = 2 if tied else 1
    assert f"{384 * 32 * 4 * copies / 1e6:.3g} MB more in the adapter" in error.message
    assert f"{384 * 32 * 16 / 1e6:.3g} MB in memory" in error.message
    assert losses(run) == []


@pytest.mark.parametrize(
    ("tied", "targets"),
    [(True, ["lm_head"]), (True, BOTH), (False, ["lm_head"]), (False, BOTH)],
)
def test_e3_with_consent_they_train_at_a_tenth_of_the_rate_and_load_again(
    make_run: MakeRun, make_base: MakeBase, tmp_path: Path, tied: bool, targets: list[str]
) -> None:
    base = make_base(tied=tied)
    recipe = _recipe(sorted({"q_proj", *targets}), allow_full_embeddings=True)
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    for point in event_data(run, EventKind.METRICS):
        assert point["embedding_learning_rate"] == pytest.approx(point["learning_rate"] / 10)
    tuned = load(base, run / "adapter")
    assert_gives_the_probe(tuned, run / "adapter")
    merged = tuned.merge_and_unload()
    assert_gives_the_probe(merged, run / "adapter")
    merged.save_pretrained(tmp_path / "merged")
    assert_gives_the_probe(load(tmp_path / "merged"), run / "adapter")
    change = merged.get_output_embeddings().weight - load(base).get_output_embeddings().weight
    assert change.abs().max() > 1e-3
    (predicted,) = [c for c in event_data(run, EventKind.CHOICE) if c["name"] == "adapter_bytes"]
    assert predicted["value"] == (run / "adapter" / "adapter_model.safetensors").stat().st_size


def test_e4_new_tokens_beside_a_whole_embedding(make_run: MakeRun, make_base: MakeBase) -> None:
    """The embedding's new rows are part of it; the head's train as rows."""
    base = make_base(tied=False)
    recipe = _recipe(["q_proj", "embed_tokens"], allow_full_embeddings=True, add_tokens=TOKENS)
    run = make_run(ROWS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    weights = load_file(run / "adapter" / "adapter_model.safetensors")
    shapes = {tuple(weight.shape) for name, weight in weights.items() if "lora" not in name}
    assert shapes == {(387, 32), (3, 32)}
    assert_gives_the_probe(load(base, run / "adapter", rows=387), run / "adapter")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("patches", ["auto", "off"])
def test_on_a_bf16_base_they_train_in_fp32_and_give_what_peft_loads(
    make_run: MakeRun, make_base: MakeBase, tied: bool, patches: str
) -> None:
    recipe = _recipe(BOTH, allow_full_embeddings=True, precision="bf16", patches=patches)
    recipe |= {"learning_rate": 1e-4}  # a tenth of it is less than bf16 can add to most weights
    base = make_base(tied=tied)
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    saved = load_file(run / "adapter" / "adapter_model.safetensors")
    whole = saved["base_model.model.model.embed_tokens.weight"]
    before = load(base).get_input_embeddings().weight.bfloat16().float()
    used = (whole != before).any(1)
    assert used.sum() > 10
    assert (whole[used] != before[used]).float().mean() > 0.9
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    assert_gives_the_probe(peft.PeftModel.from_pretrained(model, run / "adapter"), run / "adapter")


def test_lora_needs_a_layer_of_its_own(make_run: MakeRun, make_base: MakeBase) -> None:
    recipe = _recipe(["lm_head"], allow_full_embeddings=True)
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(make_base(tied=True)))
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.param == "recipe.lora.target_modules"


def test_a_rate_of_its_own_keeps_the_group_s_other_settings() -> None:
    one, two, three = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    groups = [{"params": [one, two], "weight_decay": 0.1}, {"params": [three], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.8, 0.9))
    set_learning_rate(optimizer, [two], 0.1)
    found = [(g["params"], g["lr"], g["weight_decay"], g["betas"]) for g in optimizer.param_groups]
    assert found == [
        ([one], 1.0, 0.1, (0.8, 0.9)),
        ([three], 1.0, 0.0, (0.8, 0.9)),
        ([two], 0.1, 0.1, (0.8, 0.9)),
    ]


def test_a_schedule_scales_both_rates() -> None:
    one, two = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.AdamW([one, two], lr=1.0)
    set_learning_rate(optimizer, [two], 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(3):
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([1 / (1 + step), 0.1 / (1 + step)])
        optimizer.step()
        schedule.step()


def test_what_trains_of_the_embeddings_is_named_once(make_base: MakeBase) -> None:
    model = load(make_base(tied=True))
    assert len(embedding_parameters(model)) == 1
    model.requires_grad_(False)
    assert embedding_parameters(model) == []
