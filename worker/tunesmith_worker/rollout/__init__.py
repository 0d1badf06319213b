"""Completions from the training model's own weights: requests in, tokens and log-probs out."""

from .native import NativeEngine, RolloutFigures
from .plan import RolloutDoesNotFit, RolloutPlan, plan_rollout
from .protocol import (
    Completion,
    FinishReason,
    NotFinite,
    Request,
    RolloutEngine,
    RolloutError,
    SamplingParams,
    UnsupportedModel,
    UnusableRequest,
)
from .stopping import eos_token_ids

__all__ = [
    "Completion",
    "FinishReason",
    "NativeEngine",
    "NotFinite",
    "Request",
    "RolloutDoesNotFit",
    "RolloutEngine",
    "RolloutError",
    "RolloutFigures",
    "RolloutPlan",
    "SamplingParams",
    "UnsupportedModel",
    "UnusableRequest",
    "eos_token_ids",
    "plan_rollout",
]
