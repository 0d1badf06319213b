"""E4: new tokens, resized and padded vocabularies, pad == eos: save, load and merge give the same
logits as the model in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.worker.conftest import MakeRun
from tests.worker.runs import losses, read_events, read_result
from tunesmith_schema import ErrorCode
from tunesmith_worker.trainer.run import main

from .conftest import MakeBase, adapter_numbers, assert_gives_the_probe, load, probe_logits
from .test_token_rows import FAST, H, messages

TOKENS = ["<think>", "</think>", "zwölf"]
ROWS = [
    {"question": f"<think>{a} zwölf</think> How much is {a}?", "answer": f"<think>{a}</think> {a}."}
    for a in range(8)
]


def _recipe(**changes: Any) -> dict[str, Any]:  # Any: JSON
    return {**FAST, "add_tokens": TOKENS, **changes}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("extra_rows", "pad_is_eos"),
    [(0, False), (0, True), (2, True), (64, False)],
    ids=["resized", "resized-pad-is-eos", "partly-padded-pad-is-eos", "padded"],
)
def test_e4_an_adapter_with_new_tokens_makes_the_round_trip(
    make_run: MakeRun,
    make_base: MakeBase,
    tmp_path: Path,
    tied: bool,
    extra_rows: int,
    pad_is_eos: bool,
) -> None:
    base = make_base(tied=tied, extra_rows=extra_rows, pad_is_eos=pad_is_eos)
    run = make_run(ROWS, recipe=_recipe(), model_path=str(base))
    assert main(run) == 0
    adapter = run / "adapter"

    tokenizer = transformers.AutoTokenizer.from_pretrained(adapter)
    ids = tokenizer.convert_tokens_to_ids(TOKENS)
    assert [tokenizer(token)["input_ids"] for token in TOKENS] == [[one] for one in ids]
    assert tokenizer.chat_template
    rows = 384 + max(3, extra_rows)
    tuned = load(base, adapter, rows=len(tokenizer))
    assert tuned.get_input_embeddings().weight.shape == (rows, H)
    assert_gives_the_probe(tuned, adapter)
    # In float32, the rounding error of merged weights depends on the kind of CPU.
    expected = probe_logits(tuned.double(), adapter)
    merged = tuned.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for model in (merged, load(tmp_path / "merged")):
        torch.testing.assert_close(probe_logits(model, adapter), expected, rtol=0.0, atol=1e-12)

    (said,) = messages(run, "tokens added: ")
    advice = "call model.resize_token_embeddings(387) first" if extra_rows == 0 else ""
    assert advice in said
    assert ("rows are enough" in said) == (extra_rows == 64)
    before = load(base).double().get_input_embeddings().weight
    after = merged.get_input_embeddings().weight
    trained = {*ids, tokenizer.eos_token_id} if pad_is_eos else set(ids)  # its row was empty
    untouched = [row for row in range(len(before)) if row not in trained]
    assert torch.equal(before[untouched], after[untouched])


def test_e4_new_tokens_with_full_tuning_make_a_model_of_the_new_size(
    make_run: MakeRun, make_base: MakeBase
) -> None:
    base = make_base(tied=False)
    recipe = _recipe(tuning="full", lora=None, learning_rate=1e-3)
    run = make_run(ROWS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    model = load(run / "adapter")
    assert model.get_output_embeddings().weight.shape == (387, H)
    assert_gives_the_probe(model, run / "adapter")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "adapter")
    assert tokenizer("zwölf")["input_ids"] == [386]


def test_rows_start_from_the_pieces_that_the_token_was_cut_into(
    make_run: MakeRun, make_base: MakeBase
) -> None:
    base = make_base(tied=False)
    recipe = _recipe(max_steps=1, learning_rate=1e-9)
    run = make_run(ROWS, recipe=recipe, model_path=str(base))
    assert main(run) == 0
    pieces = transformers.AutoTokenizer.from_pretrained(base)("</think>")["input_ids"]
    assert len(pieces) > 2
    merged = load(base, run / "adapter", rows=387).merge_and_unload()
    for name in ("get_input_embeddings", "get_output_embeddings"):
        mean = getattr(load(base), name)().weight[pieces].mean(0)
        start = getattr(merged, name)().weight[385]
        torch.testing.assert_close(start, mean, rtol=1e-5, atol=1e-6)


def test_the_adapter_grows_by_the_new_rows_and_nothing_else(
    make_run: MakeRun, make_base: MakeBase
) -> None:
    base = make_base(tied=False)
    with_tokens = make_run(ROWS, recipe=_recipe(), model_path=str(base))
    without = make_run(ROWS, recipe=FAST, model_path=str(base), name="without")
    assert [main(with_tokens), main(without)] == [0, 0]
    assert adapter_numbers(with_tokens) - adapter_numbers(without) == 2 * 3 * H
    assert "tokenizer.json" not in [path.name for path in (without / "adapter").iterdir()]
    assert losses(with_tokens) != losses(without)


def test_what_is_a_token_already_is_said_and_not_added(
    make_run: MakeRun, make_base: MakeBase
) -> None:
    recipe = {**FAST, "add_tokens": ["</s>", " capital", "<new>"]}
    run = make_run(ROWS, recipe=recipe, model_path=str(make_base(tied=True)))
    assert main(run) == 0
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    assert any("'</s>', ' capital' not added, because" in one for one in warnings)
    assert len(messages(run, "tokens added: '<new>' (384).")) == 1


def test_a_head_with_a_bias_is_refused_before_training(
    make_run: MakeRun, tiny_model: Path, tmp_path: Path
) -> None:
    phi = _head_with_a_bias(tiny_model, tmp_path / "phi")
    run = make_run(ROWS, recipe=_recipe(), model_path=str(phi))
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert (error.code, error.param) == (ErrorCode.RECIPE_INVALID, "recipe.add_tokens")
    assert "head has a bias, so single rows of lm_head cannot be trained" in error.message


def test_a_head_with_a_bias_keeps_its_empty_rows_and_the_embedding_learns(
    make_run: MakeRun, tiny_model: Path, tmp_path: Path
) -> None:
    phi = _head_with_a_bias(tiny_model, tmp_path / "phi")
    run = make_run(ROWS, recipe=FAST, model_path=str(phi))
    assert main(run) == 0
    assert len(messages(run, "single rows of lm_head cannot be trained")) == 1
    assert len(messages(run, "token rows of model.embed_tokens are trained, 1 in each")) == 1
    tuned = load(phi, run / "adapter")
    assert_gives_the_probe(tuned, run / "adapter")
    assert not tuned.merge_and_unload().get_output_embeddings().weight[2].any()


def _head_with_a_bias(tiny_model: Path, folder: Path) -> Path:
    config = transformers.PhiConfig(
        vocab_size=384, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    model = transformers.PhiForCausalLM(config)
    assert model.lm_head.bias is not None
    for matrix in (model.get_input_embeddings(), model.lm_head):
        matrix.weight.data[2] = 0.0
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder
