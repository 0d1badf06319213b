"""Choose the engine that generates completions for a model.

The engine `native` is our own decoder, which supports only some model families. The engine
`transformers` supports every causal language model, but is slower. The engine `vllm` uses vLLM, an
optional package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from pydantic import JsonValue

from tunesmith_schema import LoraRecipe

from .architecture import read_architecture
from .native import NativeEngine
from .plan import RolloutPlan, plan_rollout
from .protocol import EngineName, EngineUnavailable, ModelEngine, UnsupportedModel
from .stock import SLOWER, StockEngine, plan_stock_rollout
from .vllm.plan import plan_vllm_rollout, server_address
from .weights import check_head

Untyped = Any  # Any: transformers is not typed
FastInference = bool | Literal["auto"]
VLLM_MODULE = "tunesmith_worker.engine.rollout.vllm"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, and the number and size of the completions that an engine must generate with the
    model."""

    model: Untyped
    """Model with its adapter, if any."""
    rows: int
    """Number of completions that are generated at the same time."""
    prompt_tokens: int
    """Length of the longest prompt."""
    max_tokens: int
    """Length of the longest completion."""
    free: int
    """Free bytes on the model's device."""
    precision: str = "auto"
    """`recipe.precision`, after `"auto"` is resolved. Only the engine `vllm` reads `precision`,
    `quantization` and `lora`."""
    quantization: str = "none"
    lora: LoraRecipe | None = None
    """Settings of the adapter; None without an adapter."""

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "rows": self.rows,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "free": self.free,
        }


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    name: EngineName
    why_not: Callable[[Workload], str | None]
    """Function that returns the reason why the engine cannot serve a workload; None if it can."""
    plan: Callable[[Workload], RolloutPlan]
    """Function that plans the memory, or raises RolloutDoesNotFit if the memory is too small."""
    make: Callable[[Untyped, RolloutPlan, Untyped], ModelEngine]
    """Function that makes the engine from a model, a plan and a tokenizer."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    kind: EngineKind
    reason: str
    refusals: dict[EngineName, str]
    """Engines that come before the chosen engine in the order of preference, each with the reason
    why it was not chosen."""

    def figures(self) -> dict[str, JsonValue]:
        return {f"not_{name}": why for name, why in self.refusals.items()}


def choose_engine(
    fast_inference: FastInference, workload: Workload, *, without: Sequence[EngineName] = ()
) -> EngineChoice:
    """Return the first engine that can serve `workload`, in the order of preference.

    `fast_inference`: `recipe.rollout.fast_inference`. `without`: engines that failed earlier.
    Raises EngineUnavailable if the recipe requires vLLM and vLLM cannot serve the workload."""
    refusals: dict[EngineName, str] = {}
    for kind in _candidates(fast_inference):
        if kind.name in without:
            refusals[kind.name] = f"the engine {kind.name} failed in this run"
            continue
        why_not = kind.why_not(workload)
        if why_not is None and fast_inference == "auto" and kind.name == "vllm":
            why_not = _why_not_by_default(workload)
        if why_not is None:
            return EngineChoice(kind=kind, reason=_reason(kind.name, refusals), refusals=refusals)
        refusals[kind.name] = why_not
    name, why_not = next(reversed(refusals.items()))
    raise EngineUnavailable(
        f"recipe.rollout.fast_inference={fast_inference!r} allows no other engine than {name}, "
        f"but {why_not}",
        "Install vLLM in the trainer's environment." if why_not == NOT_INSTALLED else "",
    )


def engine_kind(name: object) -> EngineKind | None:
    """Return the engine with this name; None if no engine has this name."""
    return next((kind for kind in ENGINES if kind.name == name), None)


def _candidates(fast_inference: FastInference) -> Iterator[EngineKind]:
    for kind in ENGINES:
        is_vllm = kind.name == "vllm"
        if fast_inference == "auto" or fast_inference == is_vllm:
            yield kind


NOT_INSTALLED = "vLLM is not installed in the trainer's environment"


def _why_not_vllm(workload: Workload) -> str | None:
    if find_spec("vllm") is None and server_address() is None:
        return NOT_INSTALLED
    reason: str | None = import_module(VLLM_MODULE).VLLMEngine.why_not(
        workload.model.config,
        workload.device,
        workload.precision,
        workload.lora,
        workload.quantization,
    )
    return reason


def _why_not_by_default(workload: Workload) -> str | None:
    if workload.device.type == "cuda" or server_address() is not None:
        return None
    return "on a CPU, vLLM is used only with recipe.rollout.fast_inference=true"


def _make_vllm(model: Untyped, plan: RolloutPlan, tokenizer: Untyped) -> ModelEngine:
    engine: ModelEngine = import_module(VLLM_MODULE).VLLMEngine(model, plan, tokenizer)
    return engine


def _plan_vllm(workload: Workload) -> RolloutPlan:
    return plan_vllm_rollout(workload.model, **workload.sizes)


def _why_not_native(workload: Workload) -> str | None:
    try:
        check_head(read_architecture(workload.model).head)
    except UnsupportedModel as reason:
        return f"the native engine does not support {reason}"
    return None


ENGINES = (
    EngineKind(name="vllm", why_not=_why_not_vllm, plan=_plan_vllm, make=_make_vllm),
    EngineKind(
        name="native",
        why_not=_why_not_native,
        plan=lambda workload: plan_rollout(workload.model, **workload.sizes),
        make=NativeEngine,
    ),
    EngineKind(
        name="transformers",
        why_not=lambda workload: None,
        plan=lambda workload: plan_stock_rollout(workload.model, **workload.sizes),
        make=StockEngine,
    ),
)
"""All engines, in the order of preference."""


def _reason(name: EngineName, refusals: dict[EngineName, str]) -> str:
    words = {
        "vllm": "vLLM serves this model",
        "native": "the native engine supports this model",
        "transformers": "transformers supports every model, but takes "
        f"{SLOWER} as long as the native engine",
    }[name]
    return "; ".join([words, *refusals.values()])
