"""Rollout engine: generates completions with the weights of the model in training."""

from .figures import PhaseTime, RolloutFigures
from .native import NativeEngine
from .plan import RolloutDoesNotFit, RolloutPlan, plan_rollout
from .protocol import (
    Completion,
    EngineLost,
    EngineName,
    EngineUnavailable,
    FinishReason,
    Interrupted,
    ModelEngine,
    NotFinite,
    OnCompletion,
    Request,
    RolloutEngine,
    RolloutError,
    SamplingParams,
    UnsupportedModel,
    UnusableRequest,
)
from .stock import StockEngine, plan_stock_rollout
from .stopping import eos_token_ids

__all__ = [
    "Completion",
    "EngineLost",
    "EngineName",
    "EngineUnavailable",
    "FinishReason",
    "Interrupted",
    "ModelEngine",
    "NativeEngine",
    "NotFinite",
    "OnCompletion",
    "PhaseTime",
    "Request",
    "RolloutDoesNotFit",
    "RolloutEngine",
    "RolloutError",
    "RolloutFigures",
    "RolloutPlan",
    "SamplingParams",
    "StockEngine",
    "UnsupportedModel",
    "UnusableRequest",
    "eos_token_ids",
    "plan_rollout",
    "plan_stock_rollout",
]
