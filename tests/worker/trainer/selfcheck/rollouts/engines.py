"""Rollout engines with one fault each, and one without fault that pads on the left like stock
trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tunesmith_worker.engine.rollout import (
    Completion,
    FinishReason,
    NativeEngine,
    Request,
    RolloutPlan,
    SamplingParams,
)
from tunesmith_worker.engine.rollout.sampling import Uniforms
from tunesmith_worker.trainer.selfcheck.model_runs import disabled_adapter

Untyped = Any  # Any: transformers and PEFT are not typed


class _Faulty(NativeEngine):
    def __init__(self, model: Untyped) -> None:
        super().__init__(model, RolloutPlan(weights="merged", max_rows=8))


class WithoutAdapter(_Faulty):
    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        with disabled_adapter(self._model):
            return super().generate(requests, *rest)


class OneCallLate(_Faulty):
    """Samples with the weights of the previous call."""

    _before: dict[str, torch.Tensor] | None = None

    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        training = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        now = {name: p.detach().clone() for name, p in training.items()}
        with torch.no_grad():
            for name, p in training.items():
                p.copy_((self._before or now)[name])
            found = super().generate(requests, *rest)
            for name, p in training.items():
                p.copy_(now[name])
        self._before = now
        return found


class NeighboursPrompt(_Faulty):
    """Gives each row the prompt of the next row, if there is one."""

    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        prompts = [one.prompt_ids for one in requests]
        turned = prompts[1:] + prompts[:1]
        wrong = [replace(r, prompt_ids=p) for r, p in zip(requests, turned, strict=True)]
        return super().generate(wrong, *rest)


class CutsPrompts(_Faulty):
    counts = True

    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        asked = sum(len(ids) for ids in {one.prompt_ids for one in requests})
        found = super().generate(
            [replace(one, prompt_ids=one.prompt_ids[-8:]) for one in requests], *rest
        )
        if not self.counts:
            self.figures.prefill_tokens = asked
        return found


class CutsPromptsAndSaysNothing(CutsPrompts):
    counts = False


class OtherTemperature(_Faulty):
    """Samples at temperature 0.7 and reports the log-probs of that temperature."""

    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        cold = SamplingParams(temperature=0.7)
        return super().generate(
            [replace(r, sampling=cold) if r.sampling.temperature else r for r in requests], *rest
        )


class OtherTemperatureInSecret(OtherTemperature):
    """Samples at temperature 0.7 but reports the log-probs of temperature 1."""

    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        found = super().generate(requests, *rest)
        return [self._as_at_1(r, one) for r, one in zip(requests, found, strict=True)]

    def _as_at_1(self, request: Request, one: Completion) -> Completion:
        if not request.sampling.temperature:
            return one
        ids = torch.tensor([[*request.prompt_ids, *one.token_ids]])
        with torch.no_grad():
            scores = self._model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        own = scores[len(request.prompt_ids) - 1 : -1]
        said = own.gather(1, torch.tensor(one.token_ids)[:, None])[:, 0].tolist()
        return replace(one, sampling_logprobs=said, policy_logprobs=said)


class EndlessEngine(_Faulty):
    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        return super().generate([replace(r, stop_token_ids=frozenset()) for r in requests], *rest)


class OneStopTokenOnly(_Faulty):
    """Uses only the largest of several stop tokens."""

    def generate(self, requests: Sequence[Request], *rest: Untyped) -> list[Completion]:
        first = [
            replace(r, stop_token_ids=frozenset(sorted(r.stop_token_ids)[-1:])) for r in requests
        ]
        return super().generate(first, *rest)


class LeftPadded:
    """Runs a whole forward pass of padded rows for each token."""

    masked = True
    name = "transformers"
    stable_length = None
    samples_from_uniforms = False
    follows_dtype = True

    def __init__(self, model: Untyped) -> None:
        self._model = model

    @torch.no_grad()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        rows: list[list[int]] = [[] for _ in requests]
        said: list[list[float]] = [[] for _ in requests]
        for place in range(max(one.max_tokens for one in requests)):
            logits = self._logits(
                [[*r.prompt_ids, *t] for r, t in zip(requests, rows, strict=True)]
            )
            for row, request in enumerate(requests):
                if not self._ended(request, rows[row]):
                    law = (logits[row] / (request.sampling.temperature or 1.0)).softmax(-1)
                    u = Uniforms(request.seed)[place]
                    sampled = int((law.double().cumsum(-1) > u).nonzero()[0])
                    token = sampled if request.sampling.temperature else int(law.argmax())
                    rows[row].append(token)
                    said[row].append(float(law[token].log()))
        return [
            Completion(
                token_ids=tokens,
                sampling_logprobs=scores,
                policy_logprobs=scores,
                finish_reason=FinishReason.STOP
                if tokens[-1] in request.stop_token_ids
                else FinishReason.LENGTH,
            )
            for request, tokens, scores in zip(requests, rows, said, strict=True)
        ]

    def _ended(self, request: Request, tokens: Sequence[int]) -> bool:
        stopped = bool(tokens) and tokens[-1] in request.stop_token_ids
        return stopped or len(tokens) >= request.max_tokens

    def _logits(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        longest = max(map(len, sequences))
        pads = [longest - len(one) for one in sequences]
        ids = torch.tensor([[0] * n + list(one) for n, one in zip(pads, sequences, strict=True)])
        mask = torch.tensor([[0] * n + [1] * (longest - n) for n in pads])
        if not self.masked:
            mask = torch.ones_like(mask)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits


class LeftPaddedWithoutMask(LeftPadded):
    masked = False
