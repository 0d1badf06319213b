"""Completions that the engine drew for the self-check, and what others make of the same tokens:
the training forward, and stock transformers on single rows without padding.

Shapes: N drawn tokens of all rows, in order; V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import torch

from tunesmith_worker.engine.rollout import Completion, Request, SamplingParams

from .check_context import ReinforcementSubject, Row, TokenIds, Untyped
from .model_runs import Pass, stock, take_gradients

NEW = 16
"""Tokens of a completion."""
SEEDS = 4
"""Completions that are drawn of the shortest prompt, a group."""
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    request: Request
    completion: Completion

    @property
    def row(self) -> Row:
        return self.request.prompt_ids, tuple(self.completion.token_ids)

    @property
    def temperature(self) -> float:
        """At which its policy log-probabilities are meant."""
        return self.request.sampling.temperature or 1.0


@dataclass(frozen=True, eq=False)
class Draws:
    """Of one call, or of several that belong together."""

    rows: list[Drawn]

    @cached_property
    def policy(self) -> torch.Tensor:
        """[N] fp64 on the host: as the engine says."""
        return _flat([one.completion.policy_logprobs for one in self.rows])

    @cached_property
    def sampling(self) -> torch.Tensor:
        """[N]: under the law that was drawn from."""
        return _flat([one.completion.sampling_logprobs for one in self.rows])

    def at(self, logits: Sequence[torch.Tensor], temperature: float | None = None) -> torch.Tensor:
        """[N]: the tokens' log-probabilities by these logits ([C, V] of each row), at each row's
        own temperature, or at this one where rows are sampled."""
        parts = []
        for one, scores in zip(self.rows, logits, strict=True):
            greedy = one.request.sampling.temperature == 0.0
            divisor = one.temperature if temperature is None or greedy else temperature
            parts.append(_log_probs(scores, one.row[1], divisor).cpu())
        return torch.cat(parts).double()


def requests_of(subject: ReinforcementSubject, prompts: Sequence[TokenIds]) -> list[Request]:
    """Greedy and by the trainer's own law, a group of the first prompt; prompts in turn, so that
    rows of one do not stand side by side."""
    asked = [
        replace(one, max_tokens=NEW, stop=(), stop_token_ids=frozenset())
        for one in subject.requests(prompts)
    ]
    greedy = [replace(one, sampling=GREEDY) for one in asked]
    group = [replace(asked[0], seed=(asked[0].seed + i) % (1 << 64)) for i in range(1, SEEDS)]
    return [*greedy, *asked, *group]


def draw(subject: ReinforcementSubject, requests: Sequence[Request]) -> Draws:
    completions = subject.engine.generate(requests)
    return Draws(
        [
            Drawn(request=request, completion=one)
            for request, one in zip(requests, completions, strict=True)
        ]
    )


def draw_alone(subject: ReinforcementSubject, requests: Sequence[Request]) -> Draws:
    """Each prompt in a call of its own; rows in the order of `requests`."""
    found: dict[int, Drawn] = {}
    places = sorted(range(len(requests)), key=lambda i: requests[i].prompt_ids)
    for _, group in groupby(places, key=lambda i: requests[i].prompt_ids):
        mine = list(group)
        drawn = draw(subject, [requests[i] for i in mine])
        found.update(zip(mine, drawn.rows, strict=True))
    return Draws([found[i] for i in range(len(requests))])


@torch.no_grad()
def trained(subject: ReinforcementSubject, draws: Draws) -> torch.Tensor:
    """[N]: what training makes of these tokens."""
    parts: dict[int, torch.Tensor] = {}
    temperatures = {one.temperature for one in draws.rows}
    for temperature in sorted(temperatures):
        places = [i for i, one in enumerate(draws.rows) if one.temperature == temperature]
        rows = [draws.rows[i].row for i in places]
        scores, _ = subject.score(rows, temperature)
        for place, (_, tokens), found in zip(places, rows, scores, strict=True):
            parts[place] = found[: len(tokens)].double().cpu()
    return torch.cat([parts[place] for place in range(len(draws.rows))])


@torch.no_grad()
def stock_logits(subject: ReinforcementSubject, rows: Sequence[Row]) -> list[torch.Tensor]:
    """[C, V] fp32 of each row: by the model without our kernels, of one row at a time."""
    with stock(subject.patched):
        return [_logits(subject.model, row, subject.device) for row in rows]


def stock_scores(subject: ReinforcementSubject, draws: Draws) -> torch.Tensor:
    """[N]"""
    return draws.at(stock_logits(subject, [one.row for one in draws.rows]))


def trained_pass(subject: ReinforcementSubject, rows: Sequence[Row], *, backward: bool) -> Pass:
    """By the training forward, all rows at once."""
    with torch.set_grad_enabled(backward):
        scores, _ = subject.score(rows, 1.0)
    found = torch.cat([one[: len(tokens)] for (_, tokens), one in zip(rows, scores, strict=True)])
    gradients = {}
    if backward:
        (-found.mean()).backward()
        gradients = take_gradients(subject.model)
    return Pass(log_probs=found.detach().float().cpu(), gradients=gradients)


def stock_pass(subject: ReinforcementSubject, rows: Sequence[Row]) -> Pass:
    """By stock transformers, row by row, forward and backward."""
    tokens = sum(len(completion) for _, completion in rows)
    found = []
    with stock(subject.patched), torch.enable_grad():
        for row in rows:
            scores = _log_probs(_logits(subject.model, row, subject.device), row[1], 1.0)
            (-scores.sum() / tokens).backward()
            found.append(scores.detach().float().cpu())
        return Pass(log_probs=torch.cat(found), gradients=take_gradients(subject.model))


def _logits(model: Untyped, row: Row, device: torch.device) -> torch.Tensor:
    prompt, completion = row
    ids = torch.tensor([[*prompt, *completion]], device=device)
    kept = len(completion) + 1  # a vocabulary's width for a whole prompt may be gigabytes
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits
    return logits[0, -kept:-1].float()


def _log_probs(logits: torch.Tensor, tokens: TokenIds, temperature: float) -> torch.Tensor:
    ids = torch.tensor(tokens, device=logits.device)[:, None]
    return (logits / temperature).log_softmax(-1).gather(1, ids)[:, 0]


def _flat(values: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor([one for row in values for one in row], dtype=torch.float64)
