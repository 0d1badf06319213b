"""The recipe: bounds of every number, and fields that contradict one another."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tunesmith_schema import EarlyStoppingRecipe, LoraRecipe, Recipe

BOUNDS: list[tuple[str, list[Any], list[Any]]] = [
    # field, accepted, refused
    ("learning_rate", [1e-9, 1, "auto"], [0, -1e-4, 1.1, "fast", float("nan"), None]),
    ("warmup_steps", [0, 10, "auto"], [-1, 0.5]),
    ("weight_decay", [0, 1], [-0.1, 1.1, "auto"]),
    ("max_seconds", [0.5, 3600, 31_536_000, None], [0, -1, 31_536_001, float("inf"), "auto"]),
    ("max_grad_norm", [0, 1000], [-1, float("inf"), float("nan")]),
    ("num_train_epochs", [0.01, 1000, "auto"], [0, 1001]),
    ("max_steps", [1, 10**6, "auto"], [0, 1.5]),
    ("per_device_train_batch_size", [1, 4096, "auto"], [0, 4097]),
    ("gradient_accumulation_steps", [1, 4096, "auto"], [0, 4097]),
    ("max_seq_length", [8, 1_048_576, "auto"], [7, 1_048_577]),
    ("overlong", ["drop", "truncate", "error"], ["auto", "cut"]),
    ("packing", [True, False, "auto"], ["often", 2]),
    ("patches", ["auto", "off", ["loss"], ["attention", "loss"]], [[], "loss", ["norm"], True]),
    ("gradient_checkpointing", [True, False, "offload", "auto"], ["often"]),
    ("precision", ["fp32", "bf16", "auto"], ["fp16", "int8"]),
    ("quantization", ["none", "nf4", "int8"], ["auto", "fp4", "int4"]),
    ("add_tokens", [[], ["<a>", "two words"]], ["<a>", [""], [1], ["a\0"], ["a" * 257], None]),
    ("embedding_learning_rate", [1e-9, 1, "auto"], [0, -1e-4, 1.1, float("nan"), None]),
    ("allow_full_embeddings", [True, False], ["auto", "perhaps"]),
    ("adapter_dtype", ["bf16", "fp32"], ["auto", "fp16"]),
    ("logging_steps", [1, 500], [0, "auto"]),
    ("eval_steps", [1, "auto"], [0]),
    ("save_steps", [1, "auto"], [0]),
    ("save_total_limit", [1, 100, None], [0, -1, 1.5, "auto"]),
    ("keep_every", [1, 100, None], [0, -1, 1.5, "auto"]),
    ("assistant_only_loss", [True, False, "auto"], ["some"]),
    ("keep", ["last", "best"], ["first", "auto", None, True]),
    ("lr_scheduler_type", ["linear", "cosine", "constant", "auto"], ["polynomial"]),
    ("tuning", ["lora", "full"], ["qlora", "auto"]),
    ("self_check", [True, False], ["auto", "perhaps"]),
    ("evaluate", [True, False], ["auto", "perhaps"]),
    ("validation_split", [0, 0.1, 0.5], [-0.1, 0.6, "auto", None]),
]

LORA_BOUNDS: list[tuple[str, list[Any], list[Any]]] = [
    ("r", [1, 512], [0, 513, 1.5, "auto"]),
    ("lora_alpha", [0.5, 4096], [0, -1, 4097, float("inf")]),
    ("lora_dropout", [0.0, 0.99], [-0.1, 1.0]),
    ("target_modules", ["auto", "all-linear", ["q_proj"]], [[], "q_proj", [1], ["a\0b"]]),
    ("bias", ["none", "all", "lora_only"], ["some"]),
    ("use_rslora", [True, False], ["perhaps"]),
]

STOPPING_BOUNDS: list[tuple[str, list[Any], list[Any]]] = [
    ("metric", ["valid_loss", "valid_mean_token_accuracy"], ["train_loss", "loss", None]),
    ("patience", [1, 1000], [0, 1001, 1.5, "auto"]),
    ("min_delta", [0, 0.01, 5.0], [-0.1, float("inf"), float("nan"), "auto"]),
]


@pytest.mark.parametrize(("field", "accepted", "refused"), BOUNDS, ids=[row[0] for row in BOUNDS])
def test_a_value_out_of_bounds_is_refused(
    field: str, accepted: list[Any], refused: list[Any]
) -> None:
    for value in accepted:
        assert getattr(Recipe.model_validate({field: value}), field) == value
    for value in refused:
        with pytest.raises(ValidationError):
            Recipe.model_validate({field: value})


@pytest.mark.parametrize(
    ("field", "accepted", "refused"), LORA_BOUNDS, ids=[row[0] for row in LORA_BOUNDS]
)
def test_a_lora_value_out_of_bounds_is_refused(
    field: str, accepted: list[Any], refused: list[Any]
) -> None:
    for value in accepted:
        assert getattr(LoraRecipe.model_validate({field: value}), field) == value
    for value in refused:
        with pytest.raises(ValidationError):
            LoraRecipe.model_validate({field: value})


@pytest.mark.parametrize(
    ("field", "accepted", "refused"), STOPPING_BOUNDS, ids=[row[0] for row in STOPPING_BOUNDS]
)
def test_an_early_stopping_value_out_of_bounds_is_refused(
    field: str, accepted: list[Any], refused: list[Any]
) -> None:
    for value in accepted:
        assert getattr(EarlyStoppingRecipe.model_validate({field: value}), field) == value
    for value in refused:
        with pytest.raises(ValidationError):
            EarlyStoppingRecipe.model_validate({field: value})


def test_the_tables_cover_every_field() -> None:
    """A new field needs its bounds in the tables above."""
    apart = {"lora", "from_scratch", "early_stopping", "grpo", "rollout"}
    assert {row[0] for row in BOUNDS} | apart == set(Recipe.model_fields)
    assert {row[0] for row in LORA_BOUNDS} == set(LoraRecipe.model_fields)
    assert {row[0] for row in STOPPING_BOUNDS} == set(EarlyStoppingRecipe.model_fields)


def test_everything_has_a_default() -> None:
    assert Recipe().tuning == "lora"
    assert LoraRecipe().r == 32


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"tuning": "full", "lora": {}}, "lora is only for tuning='lora'"),
        ({"from_scratch": True}, "set tuning='full'"),
        ({"add_tokens": ["<a>", "  "]}, "'  ' is only white space"),
        ({"add_tokens": ["<a>", "<b>", "<a>"]}, "'<a>' more than once"),
        ({"from_scratch": True, "tuning": "lora"}, "set tuning='full'"),
        ({"precision": "bf16_split_master"}, "is only for tuning='full'.*Use precision='bf16'"),
        ({"precision": "bf16_sr8"}, "precision='bf16_sr8' is only for tuning='full'"),
        ({"precision": "fp16"}, "its gradients overflow: use 'bf16'"),
        ({"tuning": "full", "quantization": "nf4"}, "quantised weights cannot be trained"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(recipe: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Recipe.model_validate(recipe)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_split_master", "bf16_sr8", "auto"])
def test_full_tuning_has_every_precision(precision: str) -> None:
    assert Recipe.model_validate({"tuning": "full", "precision": precision}).precision == precision


def test_a_recipe_survives_json() -> None:
    recipe = Recipe(lora=LoraRecipe(r=8, target_modules=["q_proj"]), learning_rate=1e-4)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("patches", "words"),
    [
        (["atention"], "unknown patch 'atention': did you mean 'attention'?"),
        (["loss", "mlp"], "unknown patch 'mlp': use 'auto', 'off' or a list of attention_block"),
        (["mlp_blok", "nonsense"], "did you mean 'mlp_block'?"),
        ("of", "did you mean 'off'?"),
        ("mlp_block", "must be a list: ['mlp_block']"),
    ],
)
def test_a_misspelt_patch_is_told_the_nearest_one(patches: object, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"patches": patches})
    (error,) = caught.value.errors()
    assert error["loc"] == ("patches",)
    assert words in error["msg"]
