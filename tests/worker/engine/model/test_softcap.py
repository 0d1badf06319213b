"""The soft cap of attention scores is computed also where transformers would load SDPA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import COMMON, FAMILIES, model_of
from tests.worker.runs import QUESTIONS
from tunesmith_worker.engine.model.base_model import load_base
from tunesmith_worker.engine.model.softcap import ignores_softcap, keep_softcap
from tunesmith_worker.engine.serving import base as serving
from tunesmith_worker.engine.verify.load import load_base as load_plain
from tunesmith_worker.engine.verify.load import load_full
from tunesmith_worker.rundir.plan import LoadPlan
from tunesmith_worker.rundir.spec import read_spec

Untyped = Any  # Any: transformers is not typed
CPU = torch.device("cpu")


@pytest.fixture
def with_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make transformers load Gemma 2 with SDPA, as before 5.21."""
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    tokenizer = make_tiny_tokenizer(pad_token="<|endoftext|>")
    config = transformers.Gemma2Config(
        **COMMON | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id},
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=1.0,
    )
    folder = tmp_path / "gemma"
    model_of(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_trainer(folder: Path, make_run: MakeRun) -> Untyped:
    run = make_run(QUESTIONS, model_path=str(folder))
    return load_base(read_spec(run), LoadPlan(precision="fp32")).model


def by_chat(folder: Path, make_run: MakeRun) -> Untyped:
    return serving.load("gemma", str(folder), CPU).model


def by_verification(folder: Path, make_run: MakeRun) -> Untyped:
    return load_plain(str(folder), torch.float32, "none", 0, CPU)


def by_read_back(folder: Path, make_run: MakeRun) -> Untyped:
    return load_full(folder, torch.float32, CPU)


@pytest.mark.usefixtures("with_sdpa")
@pytest.mark.parametrize("loaded", [by_trainer, by_chat, by_verification, by_read_back])
def test_a_loaded_model_has_its_soft_cap(
    gemma: Path, make_run: MakeRun, loaded: Callable[[Path, MakeRun], Untyped]
) -> None:
    stock = transformers.AutoModelForCausalLM.from_pretrained(gemma).eval()
    assert ignores_softcap(stock)
    stock.set_attn_implementation("eager")
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        expected = stock(ids).logits
        found = loaded(gemma, make_run).eval()(ids).logits
        for layer in stock.model.layers:
            layer.self_attn.attn_logit_softcapping = None
        uncapped = stock(ids).logits
    assert float((uncapped - expected).abs().max()) > 0.1
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_other_attention_stays_sdpa(family: str) -> None:
    """Gemma 3 reads a soft cap from its configuration, and does not use it."""
    config = FAMILIES[family]()
    config.attn_logit_softcapping = 1.0
    model = transformers.AutoModelForCausalLM.from_config(config)
    keep_softcap(model)
    assert model.config._attn_implementation == "sdpa"
