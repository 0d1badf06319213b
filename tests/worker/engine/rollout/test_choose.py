"""The engine that the recipe and the model lead to, and the reason that is given."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import make_model, with_lora
from tunesmith_schema import LoraRecipe
from tunesmith_worker.engine.rollout import EngineUnavailable, NativeEngine, StockEngine
from tunesmith_worker.engine.rollout import choose as module
from tunesmith_worker.engine.rollout.choose import (
    VLLM_MODULE,
    Workload,
    choose_engine,
    engine_kind,
)

from .test_stock import make_gpt2

Untyped = Any  # Any: transformers is not typed


def workload(model: Untyped, **changes: Any) -> Workload:
    sizes = {"rows": 4, "prompt_tokens": 9, "max_tokens": 8, "free": 1 << 30}
    return Workload(**{"model": model, **sizes, **changes})


class FakeVLLM:
    """Stand-in with the answers of vLLM's engine."""

    refuses: str | None = None
    asked: tuple[Any, ...] = ()

    def __init__(self, *given: Any) -> None:
        self.given = given

    @classmethod
    def why_not(cls, *given: Any) -> str | None:
        cls.asked = given
        return cls.refuses


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[FakeVLLM]:
    """vLLM as if it were installed."""
    engine = type("FakeVLLM", (FakeVLLM,), {})
    fake = ModuleType(VLLM_MODULE)
    fake.VLLMEngine = engine  # type: ignore[attr-defined]  # a new module
    monkeypatch.setitem(sys.modules, VLLM_MODULE, fake)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        module, "find_spec", lambda name: fake if name == "vllm" else find_spec(name)
    )
    return engine


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_vllm")
@pytest.mark.parametrize("fast_inference", ["auto", False])
def test_a_known_family_is_generated_by_our_engine(fast_inference: Any) -> None:
    model = with_lora(make_model("llama"))
    chosen = choose_engine(fast_inference, workload(model))
    assert chosen.kind.name == "native"
    says_so = "vLLM is not installed" in chosen.reason
    assert says_so == (fast_inference == "auto")
    plan = chosen.kind.plan(workload(model))
    assert isinstance(chosen.kind.make(model, plan, None), NativeEngine)


@pytest.mark.usefixtures("no_vllm")
def test_another_family_is_generated_by_transformers_and_the_reason_is_given() -> None:
    model = make_gpt2()
    chosen = choose_engine("auto", workload(model))
    assert chosen.kind.name == "transformers"
    assert "the native engine does not support GPT2LMHeadModel" in chosen.reason
    assert "times as long as the native engine" in chosen.reason
    assert set(chosen.figures()) == {"not_vllm", "not_native"}
    plan = chosen.kind.plan(workload(model))
    assert isinstance(chosen.kind.make(model, plan, None), StockEngine)


@pytest.mark.usefixtures("no_vllm")
def test_vllm_is_demanded_but_not_installed() -> None:
    with pytest.raises(EngineUnavailable) as caught:
        choose_engine(True, workload(make_model("llama")))
    assert "recipe.rollout.fast_inference=True" in str(caught.value)
    assert "vLLM is not installed" in str(caught.value)
    assert caught.value.remedy == "Install vLLM in the trainer's environment."


def test_vllm_serves_what_it_can_if_it_is_demanded(vllm: type[FakeVLLM]) -> None:
    model, lora = make_model("llama"), LoraRecipe(r=4)
    given = workload(model, precision="fp32", quantization="nf4", lora=lora)
    chosen = choose_engine(True, given)
    assert chosen.kind.name == "vllm"
    assert vllm.asked == (model.config, torch.device("cpu"), "fp32", lora, "nf4")
    plan = chosen.kind.plan(given)
    assert plan.max_rows == 4
    engine: Any = chosen.kind.make(model, plan, "tokenizer")
    assert engine.given == (model, plan, "tokenizer")
    vllm.refuses = "vLLM cannot load DoRA"
    with pytest.raises(EngineUnavailable, match="vLLM cannot load DoRA"):
        choose_engine(True, given)


def test_auto_takes_vllm_on_a_gpu_only(
    vllm: type[FakeVLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = workload(make_model("llama"))
    chosen = choose_engine("auto", given)
    assert (chosen.kind.name, "on a CPU" in chosen.reason) == ("native", True)
    monkeypatch.setattr(Workload, "device", property(lambda self: torch.device("cuda")))
    assert choose_engine("auto", given).kind.name == "vllm"
    assert choose_engine(False, given).kind.name == "native"
    failed = choose_engine("auto", given, without=["vllm"])
    assert (failed.kind.name, "vllm failed in this run" in failed.reason) == ("native", True)
    vllm.refuses = "vLLM cannot load DoRA"
    assert choose_engine("auto", given).refusals == {"vllm": "vLLM cannot load DoRA"}


def test_engines_are_known_by_name() -> None:
    native = engine_kind("native")
    assert native is not None
    assert native.make is NativeEngine
    assert engine_kind("llama.cpp") is None
