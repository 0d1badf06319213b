"""A tripwire of benchmarks/chat.py: the figures of a result. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import chat, chat_side

from tests.tiny_model import make_tiny_model


def test_the_summary_compares_with_the_faster_side() -> None:
    rates = {
        "1": [90.0, 100.0],
        "32": [600.0, 500.0],
        "generate_batch": [200.0],
        "serve": [50.0],
        "serve_batching": [300.0],
    }
    result = chat.summary(5.0, rates, [(2.0, 5.0), (2.0, 4.0)])
    assert (result["stream_ratio"], result["speed_ratio"]) == (6.0, 2.0)
    assert result["stall_ratio"] == 2.0


def test_the_models_copy_has_no_end_and_the_cache_fits_all_streams(tmp_path: Path) -> None:
    copy = chat.without_end(make_tiny_model(tmp_path / "a" / "model"), tmp_path / "b")
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        assert json.loads((copy / name).read_text())[key] is None
    assert chat_side.blocks_for(32, 128) * chat_side.BLOCK >= 32 * (chat_side.PROMPT + 128)
