"""Completions generated for the self-check, and their log-probs in trainer and stock transformers.

Stock transformers runs one row at a time, without padding.
Shapes: N is the number of generated tokens in all rows, C the tokens of a completion, V the
vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import torch

from tunesmith_worker.engine.rollout import Completion, Request, SamplingParams

from .check_context import PromptAndCompletion, ReinforcementContext, TokenIds, Untyped
from .model_runs import ModelRun, pop_gradients, stock_modules

NEW_TOKENS = 16
"""Number of tokens to generate in each completion."""
SEEDS = 4
"""Number of completions of the shortest prompt, which form a group."""
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, kw_only=True)
class GeneratedRow:
    request: Request
    completion: Completion

    @property
    def row(self) -> PromptAndCompletion:
        return self.request.prompt_ids, tuple(self.completion.token_ids)

    @property
    def temperature(self) -> float:
        """Temperature that divides the logits in the row's policy log-probabilities; 1 for a greedy
        completion."""
        return self.request.sampling.temperature or 1.0


@dataclass(frozen=True, eq=False)
class Generated:
    """Rows that the engine generated in one or several calls."""

    rows: list[GeneratedRow]

    @cached_property
    def policy(self) -> torch.Tensor:
        """The engine's policy log-probabilities, [N] fp64 on the CPU."""
        return _flat([row.completion.policy_logprobs for row in self.rows])

    def log_probs_at(
        self, logits: Sequence[torch.Tensor], temperature: float | None = None
    ) -> torch.Tensor:
        """Return the log-probabilities [N] of the tokens. `logits` has one tensor [C, V] per row.

        `temperature`: replaces the temperature of sampled rows; None keeps the rows' temperature.
        """
        parts = []
        for row, scores in zip(self.rows, logits, strict=True):
            greedy = row.request.sampling.temperature == 0.0
            divisor = row.temperature if temperature is None or greedy else temperature
            parts.append(_log_probs(scores, row.row[1], divisor).cpu())
        return torch.cat(parts).double()


def make_requests(context: ReinforcementContext, prompts: Sequence[TokenIds]) -> list[Request]:
    """Return a greedy and a sampled request for each prompt, and more sampled requests for the
    first prompt.

    Requests for the same prompt are not adjacent.
    """
    sampled = [
        replace(request, max_tokens=NEW_TOKENS, stop=(), stop_token_ids=frozenset())
        for request in context.requests(prompts)
    ]
    greedy = [replace(request, sampling=GREEDY) for request in sampled]
    first = sampled[0]
    group = [replace(first, seed=(first.seed + i) % (1 << 64)) for i in range(1, SEEDS)]
    return [*greedy, *sampled, *group]


def generate(context: ReinforcementContext, requests: Sequence[Request]) -> Generated:
    completions = context.engine.generate(requests)
    return Generated(
        [
            GeneratedRow(request=request, completion=completion)
            for request, completion in zip(requests, completions, strict=True)
        ]
    )


def generate_single_prompts(
    context: ReinforcementContext, requests: Sequence[Request]
) -> Generated:
    """Generate with a separate call for each prompt; return rows in the order of `requests`."""
    rows: dict[int, GeneratedRow] = {}
    places = sorted(range(len(requests)), key=lambda i: requests[i].prompt_ids)
    for _, group in groupby(places, key=lambda i: requests[i].prompt_ids):
        same_prompt = list(group)
        generated = generate(context, [requests[i] for i in same_prompt])
        rows.update(zip(same_prompt, generated.rows, strict=True))
    return Generated([rows[i] for i in range(len(requests))])


@torch.no_grad()
def training_scores(context: ReinforcementContext, generated: Generated) -> torch.Tensor:
    """Return the tokens' log-probabilities [N], computed by the trainer's forward pass."""
    parts: dict[int, torch.Tensor] = {}
    temperatures = {row.temperature for row in generated.rows}
    for temperature in sorted(temperatures):
        places = [i for i, row in enumerate(generated.rows) if row.temperature == temperature]
        rows = [generated.rows[i].row for i in places]
        scores, _ = context.score(rows, temperature)
        for place, (_, tokens), row_scores in zip(places, rows, scores, strict=True):
            parts[place] = row_scores[: len(tokens)].double().cpu()
    return torch.cat([parts[place] for place in range(len(generated.rows))])


@torch.no_grad()
def stock_logits(
    context: ReinforcementContext, rows: Sequence[PromptAndCompletion]
) -> list[torch.Tensor]:
    """Return the stock model's logits for each row, [C, V] fp32, computed row by row."""
    with stock_modules(context.patched):
        return [_logits(context.model, row, context.device) for row in rows]


def stock_scores(context: ReinforcementContext, generated: Generated) -> torch.Tensor:
    """Return the tokens' log-probabilities [N], computed by stock transformers."""
    return generated.log_probs_at(stock_logits(context, [row.row for row in generated.rows]))


def training_run(
    context: ReinforcementContext, rows: Sequence[PromptAndCompletion], *, backward: bool
) -> ModelRun:
    """Run the trainer's forward pass on all rows in one batch."""
    with torch.set_grad_enabled(backward):
        scores, _ = context.score(rows, 1.0)
    log_probs = torch.cat(
        [row_scores[: len(tokens)] for (_, tokens), row_scores in zip(rows, scores, strict=True)]
    )
    gradients = {}
    if backward:
        (-log_probs.mean()).backward()
        gradients = pop_gradients(context.model)
    return ModelRun(log_probs=log_probs.detach().float().cpu(), gradients=gradients)


def stock_run(context: ReinforcementContext, rows: Sequence[PromptAndCompletion]) -> ModelRun:
    """Run stock transformers row by row, forward and backward."""
    tokens = sum(len(completion) for _, completion in rows)
    log_probs = []
    with stock_modules(context.patched), torch.enable_grad():
        for row in rows:
            scores = _log_probs(_logits(context.model, row, context.device), row[1], 1.0)
            (-scores.sum() / tokens).backward()
            log_probs.append(scores.detach().float().cpu())
        return ModelRun(log_probs=torch.cat(log_probs), gradients=pop_gradients(context.model))


def _logits(model: Untyped, row: PromptAndCompletion, device: torch.device) -> torch.Tensor:
    prompt, completion = row
    ids = torch.tensor([[*prompt, *completion]], device=device)
    kept = len(completion) + 1  # logits for the whole prompt may take gigabytes
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits
    return logits[0, -kept:-1].float()


def _log_probs(logits: torch.Tensor, tokens: TokenIds, temperature: float) -> torch.Tensor:
    ids = torch.tensor(tokens, device=logits.device)[:, None]
    return (logits / temperature).log_softmax(-1).gather(1, ids)[:, 0]


def _flat(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)
