"""Whether the engine draws from the weights as they now are: each module that trains is moved for
itself, and the engine must follow as training does.

The traps: an adapter that rollouts do not have, in one layer's up_proj or at all; a copy of the
weights that nobody renews.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import peft
import torch
from peft.tuners.lora import LoraLayer

from tunesmith_worker.engine.rollout import SamplingParams

from .check_context import ReinforcementSubject, TokenIds, Untyped
from .findings import Finding, Outcome, judged, not_applicable
from .model_runs import MOVED, adapter_moved, adapter_off, adapter_zeroed, backbone_of
from .parity import Limits, change
from .reference_scores import Draws, draw, stock_scores, trained
from .rollout_parity import TRAINER_HINT, fault

NAME = "rollout_follows_weights"
NEW = 3
"""Tokens, so that both passes of the engine run: of prompts, and of one token."""
LEAST = {True: 1e-5, False: 1e-3}
"""That a moved module changes a log-probability by, in fp32 or not."""
SIZE = {True: 5 * MOVED, False: 10 * MOVED}
HOT = SamplingParams(temperature=4.0)
"""Of a token that is next to certain the log-probability does not move, whatever the weights do."""
SHAKEN = 0.1
"""Of a weight's own standard deviation: what is added to it in full tuning. Not a factor, which a
norm behind it would take away."""


@dataclass(frozen=True, kw_only=True)
class _Module:
    name: str
    moved: AbstractContextManager[None]


class Following:
    def __init__(
        self, subject: ReinforcementSubject, prompts: list[TokenIds], limits: Limits
    ) -> None:
        """`prompts`: few and short ones."""
        self._subject, self._limits = subject, limits
        self._requests = [
            replace(one, max_tokens=NEW, sampling=HOT, stop=(), stop_token_ids=frozenset())
            for one in subject.requests(prompts)
        ]

    def outcome(self) -> Outcome:
        """`rollout_follows_weights`. The engine's last call was with an adapter that was moved."""
        model = self._subject.model
        if not isinstance(model, peft.PeftModel):
            return self._modules(model, draw(self._subject, self._requests))
        with adapter_zeroed(model):
            zero = draw(self._subject, self._requests)
            with adapter_off(model):
                base = stock_scores(self._subject, zero)
            apart = change(zero.policy, base, self._limits)
            if apart <= self._limits.log_prob:
                return self._modules(model, zero)
        return judged(NAME, [self._not_the_base(zero, apart)], "")

    def _not_the_base(self, zero: Draws, apart: float) -> Finding:
        with adapter_moved(self._subject.model):
            stale = change(zero.policy, stock_scores(self._subject, zero), self._limits)
        cause = "with an adapter of zeros the engine is not the base model"
        if stale <= self._limits.log_prob:
            cause = "stale weights in the engine: it draws from those of an earlier call"
        return fault(
            NAME,
            f"{cause}: its log-probabilities are {apart:.1e} away from the base model's "
            f"(tolerance {self._limits.log_prob:.0e}).",
        )

    def _modules(self, model: Untyped, still: Draws) -> Outcome:
        modules = _one_layer(model, SIZE[self._limits.single])
        if not modules:
            return not_applicable(NAME, "nothing that trains lies in a decoder layer")
        least = LEAST[self._limits.single]
        for one in modules:
            with one.moved:
                now = draw(self._subject, self._requests)
                training = trained(self._subject, now)
            change_of_engine = _moved(now, still)
            apart = change(now.policy, training, self._limits)
            if not change_of_engine > least:
                cause = (
                    f"moving {one.name} changes the engine's log-probabilities by "
                    f"{change_of_engine:.1e} (more than {least:.0e} is expected): stale weights, "
                    "or an adapter that the engine does not have."
                )
                return judged(NAME, [fault(NAME, cause)], "")
            if not apart <= self._limits.log_prob:
                return judged(NAME, [self._parted(one.name, now, apart)], "")
        return judged(NAME, [], f"{len(modules)} modules of a layer, each moved for itself")

    def _parted(self, name: str, now: Draws, apart: float) -> Finding:
        """Which of the two does not follow."""
        return fault(
            NAME,
            f"with {name} moved, the engine's log-probabilities are {apart:.1e} away from the "
            f"training forward's (tolerance {self._limits.log_prob:.0e}): one of them does not "
            "see the change.",
            TRAINER_HINT,
        )


def _moved(now: Draws, still: Draws) -> float:
    pairs = zip(now.rows, still.rows, strict=True)
    if any(one.row != other.row for one, other in pairs):
        return float("inf")
    return float((now.policy - still.policy).abs().max())


def _one_layer(model: Untyped, size: float) -> list[_Module]:
    """What trains of the layer in the middle, or of the first one that has something."""
    layers = list(backbone_of(model).layers)
    middle = len(layers) // 2
    names = {id(module): name for name, module in model.named_modules()}
    for layer in (layers[middle], *layers):
        found = []
        for module in layer.modules():
            name = names[id(module)]
            short = name.removeprefix("base_model.model.")
            if isinstance(module, LoraLayer):
                found.append(_Module(name=short, moved=adapter_moved(model, f"{name}.", size)))
            elif (
                type(module) is torch.nn.Linear
                and module.weight.requires_grad
                and "lora_" not in name
            ):
                found.append(_Module(name=short, moved=_shaken(module.weight)))
        if found:
            return found
    return []


@contextmanager
def _shaken(weight: torch.Tensor) -> Iterator[None]:
    """In place, so that whoever looks at its memory sees it."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        before = weight.detach().clone()
        noise = torch.randn(weight.shape, generator=draw) * SHAKEN
        weight.add_(noise.to(weight.device, weight.dtype) * before.std())
        try:
            yield
        finally:
            weight.copy_(before)
