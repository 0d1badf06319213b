"""docs/reference/models.md: generated from training every model type, and complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.models.configs import architectures
from benchmarks.models.page import PAGE, Row, page, read_rows
from benchmarks.models.record import LIMIT, record

from tests.tiny_model import make_tiny_tokenizer
from tunesmith_worker.engine.patches.families import FAMILIES


def row(state: str, **changes: object) -> Row:
    run = {"state": state, "detail": "patched 1 x loss; left unchanged: x", "difference": 1e-7}
    run |= {"own_logits": False}
    return {"model_type": "some", "class": "SomeForCausalLM", "needs": ["experts"], "lora": run} | (
        changes
    )


def test_the_page_is_what_the_results_give() -> None:
    assert PAGE.read_text() == page(read_rows()), "run: python -m benchmarks.models --page"


def test_no_run_crashed_or_differed() -> None:
    runs = [r[m] for r in read_rows() for m in ("lora", "full", "grpo") if m in r]
    assert {run["state"] for run in runs} <= {"fast", "stock", "refused", "failed"}
    found = ("Self-check before the first step", "The saved result is not", "Step 1: gradient")
    assert all(run["detail"].startswith(found) for run in runs if run["state"] == "failed")
    assert max(run["difference"] or 0.0 for run in runs) <= LIMIT


def test_at_least_26_layer_classes_are_on_the_fast_path() -> None:
    assert len(FAMILIES) >= 26


def test_fast_types_are_listed_by_the_halves_that_are_ours() -> None:
    fast = row("fast")
    fast["lora"]["detail"] = "patched 3 x attention_block, 1 x loss; left unchanged: 3 x mlp_block"
    assert "\n- **attention**: `some`\n" in page([fast])
    fast["lora"]["detail"] = "patched 3 x attention_block, 3 x mlp_block"
    assert "\n- **attention and MLP**: `some`\n" in page([fast])
    assert "\n\n`some`\n" in page([row("stock")])


def test_every_type_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert [r["model_type"] for r in read_rows() if f"`{r['model_type']}`" not in text] == []


def test_a_refusal_is_listed_with_its_reason() -> None:
    refused = row("refused")
    refused["lora"]["detail"] = "`SomeForCausalLM` is not causal: changes by 1.3e-03 (relative), so"
    same = refused | {"model_type": "same"}
    assert "| `same`, `some` | LoRA | refused | the model is not causal: changes, so |" in page(
        [refused, same]
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", sorted(row["model_type"] for row in read_rows())[::32])
def test_a_recorded_model_type_trains_as_recorded(model_type: str, tmp_path: Path) -> None:
    """One of 32 recorded types. `python -m benchmarks.models` trains all, which takes long."""
    name = architectures()[model_type]
    result = record(model_type, name, make_tiny_tokenizer(), ("lora", "full", "grpo"))
    if "not_built" in result:
        pytest.skip(result["not_built"])
    recorded = next(row for row in read_rows() if row["model_type"] == model_type)
    for method in ("lora", "full", "grpo"):
        assert result[method]["state"] == recorded[method]["state"], method
