"""A model, its native engine and vLLM, and comparisons of their completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import httpx
import torch

from tests.worker.engine.patches.models import COMMON, VOCABULARY, model_of, with_lora
from tunesmith_worker.engine.rollout import (
    Completion,
    NativeEngine,
    Request,
    RolloutPlan,
    SamplingParams,
)
from tunesmith_worker.engine.rollout.vllm import VLLMEngine
from tunesmith_worker.engine.rollout.vllm.server import ServedVLLM

Untyped = Any  # Any: transformers is not typed

SHAPE: dict[str, Untyped] = COMMON | {"hidden_size": 128}
"""vLLM's attention on a CPU needs heads of at least 32 elements."""
PLAN = RolloutPlan(weights="merged", max_rows=24, row_tokens=200)
STOP = 2


@dataclass
class Engines:
    model: Untyped
    native: NativeEngine
    vllm: VLLMEngine

    def both(self, requests: Sequence[Request]) -> tuple[list[Completion], list[Completion]]:
        """Return the completions of vLLM and of the native engine."""
        return self.vllm.generate(requests), self.native.generate(requests)


def engines_of(model: Untyped, tokenizer: Untyped = None) -> Engines:
    model = model.eval()
    return Engines(model, NativeEngine(model, PLAN, tokenizer), VLLMEngine(model, PLAN, tokenizer))


def adapted(config: Untyped, dtype: torch.dtype = torch.float32) -> Untyped:
    return with_lora(model_of(config).to(dtype))


def requests_of(
    count: int, sampling: SamplingParams, *, tokens: int = 14, seed: int = 0
) -> list[Request]:
    """Return requests whose prompts have different lengths, and whose seeds use all 64 bits."""
    draw = torch.Generator().manual_seed(seed)
    return [
        Request(
            prompt_ids=tuple(torch.randint(3, VOCABULARY, (1 + 2 * i,), generator=draw).tolist()),
            max_tokens=tokens + i % 5,
            seed=(1 << 64) - 1 - i,
            sampling=sampling,
            stop_token_ids=frozenset({STOP}),
        )
        for i in range(count)
    ]


def act_in_mid_rollout(
    engine: VLLMEngine, requests: Sequence[Request], arrived: Sized, act: Callable[[], None]
) -> None:
    """In the engine's next rollout, hold the last request back until a completion has arrived, and
    call `act` before it is sent. vLLM may deliver all replies together, so a callback at the first
    completion can be too late."""
    asked = 0

    async def hold_the_last(_: httpx.Request) -> None:
        nonlocal asked
        asked += 1
        if asked == len(requests):
            while not arrived:
                await asyncio.sleep(0.01)
            act()

    assert isinstance(engine._vllm, ServedVLLM)
    engine._vllm._settings["event_hooks"] = {"request": [hold_the_last]}


def gap(first: Sequence[Completion], second: Sequence[Completion]) -> float:
    """Return the mean |difference| of the log-probs, up to the first token that differs."""
    differences = []
    for a, b in zip(first, second, strict=True):
        for i, (x, y) in enumerate(zip(a.policy_logprobs, b.policy_logprobs, strict=False)):
            if a.token_ids[: i + 1] != b.token_ids[: i + 1]:
                break
            differences.append(abs(x - y))
    return fmean(differences)


def moved(first: Sequence[Completion], second: Sequence[Completion]) -> float:
    """Return the largest change of a first token's log-prob."""
    pairs = zip(first, second, strict=True)
    return max(abs(a.policy_logprobs[0] - b.policy_logprobs[0]) for a, b in pairs)
