"""What counts as never trained: planted rows, random models, and real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import FAMILIES, make_model
from tunesmith_worker.engine.model.embeddings.untrained_rows import find_untrained


def _found(weight: torch.Tensor) -> tuple[list[int], list[int]]:
    found = find_untrained(weight)
    return found.rows.nonzero()[:, 0].tolist(), found.empty.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.02, 3.0])
def test_planted_rows_are_found_and_no_other(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(3000, 64) * scale + 0.3 * scale
    mean = weight.mean(0)
    weight[7] = 0.0
    weight[8] = weight[9] * 1e-5  # decayed
    weight[10] = 1.0
    weight[11] = float("nan")
    weight[12] = mean
    weight[20:24] = weight[20] * (1 + 1e-4 * torch.randn(4, 64))
    weight[2500] = weight[2600]
    assert _found(weight.to(dtype)) == (
        [7, 8, 10, 11, 12, 20, 21, 22, 23, 2500, 2600],
        [7, 8, 10, 11],
    )


def test_a_padded_vocabulary_is_found_whatever_it_is_padded_with() -> None:
    torch.manual_seed(0)
    weight = torch.randn(1000, 48) * 0.02
    for padding in (torch.zeros(48), weight[:300].mean(0), torch.randn(48)):
        padded = weight.clone()
        padded[300:] = padding
        assert _found(padded)[0] == list(range(300, 1000))


def test_nothing_is_made_of_a_matrix_without_rows_to_compare() -> None:
    for weight in (torch.zeros(10, 8), torch.ones(1, 8), torch.randn(10, 1)):
        assert _found(weight) == ([], [])


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
def test_a_random_model_has_none_but_its_padding(family: str) -> None:
    assert family in FAMILIES
    rows, empty = _found(make_model(family).get_input_embeddings().weight)
    assert rows == empty
    assert set(rows) <= {0}


@pytest.mark.parametrize("name", ["tiny-math", "tiny-math-flat"])
def test_a_model_that_saw_all_its_tokens_has_none(shared_data: Path, name: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(shared_data / "models" / name)
    assert _found(model.get_input_embeddings().weight) == ([], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_that_no_story_holds_were_never_trained(
    shared_data: Path, dtype: torch.dtype
) -> None:
    """stories260K: its special and byte tokens, which moved together; no word or letter."""
    folder = shared_data / "models" / "stories260K"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows, empty = _found(model.get_input_embeddings().weight.to(dtype))
    names = tokenizer.convert_ids_to_tokens(rows)
    assert (len(rows), empty) == (169, [])
    assert all(name.startswith("<0x") or name in ("<unk>", "</s>") for name in names)
    problems = (shared_data / "gsm8k" / "train.jsonl").read_text().splitlines()[:300]
    text = [json.loads(line)["question"] + json.loads(line)["answer"] for line in problems]
    used = {i for ids in tokenizer(text, verbose=False)["input_ids"] for i in ids}
    assert tokenizer.convert_ids_to_tokens(sorted(used & set(rows))) == ["<0x97>"]  # of a "×"
