"""The self-check's longest row reaches past the window and past two tiles of our attention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import COMMON
from tests.worker.runs import QUESTIONS, read_result
from tests.worker.trainer.grpo.test_exactness import ASKED, BASE, GRPO, LENGTH
from tunesmith_kernels import attention
from tunesmith_schema import ErrorCode
from tunesmith_worker.trainer.run import main
from tunesmith_worker.trainer.selfcheck.row_lengths import longest_row

Untyped = Any  # Any: transformers is not typed
PACKED = {"max_steps": 1, "packing": True}


def config(**given: Any) -> Any:
    text = SimpleNamespace(**{"max_position_embeddings": 4096, "sliding_window": None, **given})
    return SimpleNamespace(get_text_config=lambda: text)


@pytest.mark.parametrize(
    ("given", "longest", "tokens"),
    [
        ({}, 60, 130),
        ({"sliding_window": 100}, 60, 130),
        ({"sliding_window": 300}, 60, 302),
        ({"sliding_window": 300, "use_sliding_window": False}, 60, 130),
        ({"sliding_window": 300, "layer_types": ["full_attention"]}, 60, 130),
        ({"sliding_window": 4096}, 60, 1024),
        ({}, 200, 200),
        ({}, 3000, 256),
        ({"max_position_embeddings": 64}, 60, 64),
        ({"rope_parameters": {"rope_type": "dynamic"}, "max_position_embeddings": 100}, 60, 100),
    ],
)
def test_the_longest_row(given: dict[str, Any], longest: int, tokens: int) -> None:
    cpu = torch.device("cpu")
    assert longest_row(config(**given), longest, torch.float32, cpu) == tokens
    assert longest_row(config(), 60, torch.bfloat16, cpu) == 258


def forgets_a_tile(segments: Untyped, shape: Untyped, qkv: Untyped) -> Untyped:
    """From the third tile of a row on, queries do not see the row's first tile."""
    for tile in _right_tiles(segments, shape, qkv):
        block = attention.tile_size(qkv.dtype, qkv.device)
        if tile.queries.start - tile.keys.start >= 2 * block:
            keys = slice(tile.keys.start + block, tile.keys.stop)
            tile = attention._Tile(tile.queries, keys, tile.prefix)
        yield tile


_right_tiles = attention._tiles


def model_with_window(folder: Path) -> Path:
    tokenizer = make_tiny_tokenizer()
    given = {**COMMON, "vocab_size": len(tokenizer), "sliding_window": 100}
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**given))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("fault", ["second tile", "second tile in bf16", "window of 100"])
def test_a_fault_of_long_rows_is_named(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    recipe: dict[str, Any] = dict(PACKED)  # Any: JSON
    given: dict[str, Any] = {}
    if fault == "window of 100":
        given["model_path"] = str(model_with_window(tmp_path / "model"))
        monkeypatch.setattr(
            "tunesmith_worker.engine.patches.half_blocks._WINDOW_IN_CONFIG", frozenset()
        )
    else:
        recipe |= {"precision": "bf16"} if "bf16" in fault else {}
        monkeypatch.setattr(attention, "_tiles", forgets_a_tile)
    run = make_run(QUESTIONS, recipe=recipe, **given)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == ErrorCode.SELF_CHECK_FAILED, error.message
    assert error.message.startswith("Self-check before the first step: patched_equals_stock: ")


def test_a_fault_of_long_prompts_is_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {**BASE, "self_check": True, "grpo": GRPO}
    run = make_run(ASKED, recipe=recipe, method="reinforcement", grader=LENGTH)
    monkeypatch.setattr(attention, "_tiles", forgets_a_tile)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == ErrorCode.SELF_CHECK_FAILED, error.message
    assert "patched_equals_stock" in error.message
