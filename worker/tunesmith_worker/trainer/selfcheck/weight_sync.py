"""Check that the engine generates from the current weights, including the adapter.

The check changes one trained module of a layer at a time. Each change must change the log-probs of
engine and trainer equally. Typical faults are rollouts without the adapter and stale copies of
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import peft
import torch
from peft.tuners.lora import LoraLayer

from tunesmith_worker.engine.memory.model_shape import decoder_layers
from tunesmith_worker.engine.rollout import SamplingParams
from tunesmith_worker.engine.scientific import scientific

from .check_context import ReinforcementContext, TokenIds, Untyped
from .findings import Finding, Outcome, make_outcome, not_applicable
from .model_runs import (
    PERTURBATION,
    disabled_adapter,
    perturbed_adapter,
    zeroed_adapter,
)
from .numerics import LEAST_CHANGE
from .parity import Limits, change
from .reference_scores import Generated, generate, stock_scores, training_scores
from .rollout_parity import TRAINER_HINT, fault

NAME = "rollout_follows_weights"
TOKENS = 3
"""Number of tokens per completion; three tokens run both the prompt pass and the decoding pass."""
SIZE = {True: 5 * PERTURBATION, False: 10 * PERTURBATION}
"""Standard deviation of the noise that is added to adapter weights. The key is True for fp32, False
for 16 bits."""
HOT = SamplingParams(temperature=4.0)
"""High temperature, because log-probabilities of almost certain tokens would hardly change."""
NOISE = 0.1
"""Standard deviation of the noise that is added to a weight in full tuning, relative to the
weight's own standard deviation. A scaled weight instead of noise would have no effect if a norm
layer follows."""


@dataclass(frozen=True, kw_only=True)
class _Module:
    name: str
    change: Callable[[], AbstractContextManager[None]]
    """Function that returns a context manager; within its block, the module's weights are
    changed."""


class WeightSyncCheck:
    def __init__(
        self, context: ReinforcementContext, prompts: list[TokenIds], limits: Limits
    ) -> None:
        """`prompts`: a few short prompts."""
        self._context, self._limits = context, limits
        self._requests = [
            replace(request, max_tokens=TOKENS, sampling=HOT, stop=(), stop_token_ids=frozenset())
            for request in context.requests(prompts)
        ]

    def outcome(self) -> Outcome:
        """Check `rollout_follows_weights`. Call this method after the engine has generated with a
        changed adapter."""
        model = self._context.model
        if not isinstance(model, peft.PeftModel):
            return self._check_modules(model, generate(self._context, self._requests))
        with zeroed_adapter(model):
            zero = generate(self._context, self._requests)
            with disabled_adapter(model):
                base = stock_scores(self._context, zero)
            apart = change(zero.policy, base, self._limits)
            if apart <= self._limits.log_prob:
                return self._check_modules(model, zero)
        return make_outcome(NAME, [self._not_the_base_model(zero, apart)], "")

    def _not_the_base_model(self, zero: Generated, apart: float) -> Finding:
        with perturbed_adapter(self._context.model):
            stale = change(zero.policy, stock_scores(self._context, zero), self._limits)
        cause = "with a zero adapter, the engine differs from the base model"
        if stale <= self._limits.log_prob:
            cause = "stale weights: the engine generates with the weights of an earlier call"
        return fault(
            NAME,
            f"{cause}: the engine's log-probabilities differ from the base model by {apart:.1e} "
            f"(tolerance {self._limits.log_prob:.0e}).",
        )

    def _check_modules(self, model: Untyped, unchanged: Generated) -> Outcome:
        modules = _modules_of_a_layer(model, SIZE[self._limits.single])
        if not modules:
            return not_applicable(NAME, "no decoder layer has trained modules")
        least = LEAST_CHANGE[self._limits.single]
        for module in modules:
            with module.change():
                changed = generate(self._context, self._requests)
                training = training_scores(self._context, changed)
            engine_change = _difference(changed, unchanged)
            apart = change(changed.policy, training, self._limits)
            if not engine_change > least and self._stock_change(module, unchanged) > least:
                message = (
                    f"noise on {module.name} changes the engine's log-probabilities by only "
                    f"{scientific(engine_change)} (more than {least:.0e} is expected): the engine "
                    "has stale weights or lacks the adapter."
                )
                return make_outcome(NAME, [fault(NAME, message)], "")
            if not apart <= self._limits.log_prob:
                return make_outcome(NAME, [self._differs_from_training(module.name, apart)], "")
        detail = f"the engine follows changes in {len(modules)} modules of a layer"
        return make_outcome(NAME, [], detail)

    def _stock_change(self, module: _Module, unchanged: Generated) -> float:
        """Return the change of the stock model's log-probs that noise on a module causes. In a
        small model, the noise may change nothing."""
        before = stock_scores(self._context, unchanged)
        with module.change():
            return float((stock_scores(self._context, unchanged) - before).abs().max())

    def _differs_from_training(self, name: str, apart: float) -> Finding:
        return fault(
            NAME,
            f"with noise on {name}, the engine's log-probabilities differ from the trainer's by "
            f"{apart:.1e} (tolerance {self._limits.log_prob:.0e}): the engine or the trainer does "
            "not use the changed weights.",
            TRAINER_HINT,
        )


def _difference(changed: Generated, unchanged: Generated) -> float:
    pairs = zip(changed.rows, unchanged.rows, strict=True)
    if any(a.row != b.row for a, b in pairs):
        return float("inf")
    return float((changed.policy - unchanged.policy).abs().max())


def _modules_of_a_layer(model: Untyped, size: float) -> list[_Module]:
    layers = decoder_layers(model)
    if not layers:
        return []
    middle = len(layers) // 2
    names = {id(module): name for name, module in model.named_modules()}
    for layer in (layers[middle], *layers):
        modules = []
        for module in layer.modules():
            name = names[id(module)]
            short = name.removeprefix("base_model.model.")
            if isinstance(module, LoraLayer):
                change = partial(perturbed_adapter, model, f"{name}.", size)
                modules.append(_Module(name=short, change=change))
            elif (
                type(module) is torch.nn.Linear
                and module.weight.requires_grad
                and "lora_" not in name
            ):
                modules.append(_Module(name=short, change=partial(_noise_added, module.weight)))
        if modules:
            return modules
    return []


@contextmanager
def _noise_added(weight: torch.Tensor) -> Iterator[None]:
    """Add noise to a weight in place, so that all tensors that share its memory change too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        before = weight.detach().clone()
        noise = torch.randn(weight.shape, generator=generator) * NOISE
        weight.add_(noise.to(weight.device, weight.dtype) * before.std())
        try:
            yield
        finally:
            weight.copy_(before)
