"""Requests and completions in the form that vLLM reads and returns.

`RequestSampler` changes the logits: the logit of the sampled token t becomes `1 - policy log-prob`,
which is at least 1. With filters or penalties, the logit of token t + 1 becomes t's sampling
log-prob, which is at most 0. All other logits become minus infinity, so vLLM's greedy decoding
chooses t. With LOGPROBS_MODE, vLLM returns the changed logits in place of log-probs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ..protocol import (
    Completion,
    EngineLost,
    EngineUnavailable,
    FinishReason,
    NotFinite,
    Request,
    SamplingParams,
)
from ..sampling import SampledTokens
from ..stopping import StopChecker

Untyped = Any  # Any: vLLM is not typed here

KEY = "tunesmith_seed"
WEIGHTS_KEY = "tunesmith_weights"
LOGPROBS_MODE = "processed_logits"
"""Value of vLLM's option `--logprobs-mode`: vLLM returns logits instead of log-probs."""
NOT_FINITE = 0.5
"""Signal in the logit of token 0: the model's logits contain NaN or infinity."""
OTHER_WEIGHTS = 0.25
"""Signal in the logit of token 0: the vLLM server lacks the weights that the request needs."""


def extra_args(request: Request, weights: str) -> dict[str, float | int | str]:
    """Return the arguments that `RequestSampler` reads."""
    return {KEY: request.seed, WEIGHTS_KEY: weights, **asdict(request.sampling)}


def read_extra_args(arguments: Mapping[str, Untyped]) -> tuple[int, str, SamplingParams]:
    """Return the seed, the id of the weights and the sampling parameters in `extra_args`."""
    values = dict(arguments)
    seed, weights = int(values.pop(KEY)), str(values.pop(WEIGHTS_KEY))
    return seed, weights, SamplingParams(**values)


def sampling_arguments(request: Request, weights: str = "") -> dict[str, Untyped]:
    """Return the arguments of vLLM's SamplingParams for a request.

    `weights`: id of the weights that a server must have; empty if vLLM runs in the trainer's
    process."""
    sampling = request.sampling
    return {
        "temperature": 0.0,  # RequestSampler leaves vLLM one token to choose from
        "max_tokens": request.max_tokens,
        "ignore_eos": True,
        "stop_token_ids": sorted(request.stop_token_ids),
        "logprobs": 2 if sampling.has_filters or sampling.has_penalties else 0,
        "detokenize": False,
        "skip_special_tokens": False,
        "extra_args": extra_args(request, weights),
    }


def encode(
    sampled: SampledTokens, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the two token ids that may get finite logits, and these logits, for each of B
    completions.

    The results are the ids [2, B] (t and t + 1, see the module's docstring), the logits [B] of the
    first ids, and the logits [B] of the second ids."""
    tokens = torch.tensor(sampled.tokens)
    both = torch.stack([tokens, (tokens + 1) % vocabulary])
    first = 1.0 - torch.tensor(sampled.policy_logprobs, dtype=torch.float64)
    return both, first, torch.tensor(sampled.sampling_logprobs, dtype=torch.float64)


def decode(
    request: Request,
    tokens: Sequence[int],
    values: Sequence[Mapping[int, float]],
    vocabulary: int,
    tokenizer: Untyped,
) -> Completion:
    """Return the completion of a request.

    `values`: the returned logits of each token, by token id. Tokens after a stop text are removed,
    because vLLM does not get the stop texts. Raises NotFinite, EngineLost and
    EngineUnavailable."""
    checker = StopChecker(request, tokenizer)
    sampling = request.sampling
    policies, samplings = [], []
    end: tuple[FinishReason, int | str | None] | None = None
    for token, value in zip(tokens, values, strict=True):
        if value[token] == OTHER_WEIGHTS:
            raise EngineLost(
                "the vLLM server lost this run's weights during a rollout, because the "
                "server was restarted or another job uses it: give its URL to only one worker"
            )
        if value[token] == NOT_FINITE:
            raise NotFinite(
                "the model's logits are not finite: check its weights for NaN, and the loss and "
                "gradient norm of the last training steps"
            )
        policy = min(0.0, 1.0 - value[token])
        policies.append(policy)
        if sampling.temperature == 0.0:
            samplings.append(0.0)
        elif sampling.has_filters or sampling.has_penalties:
            samplings.append(value[(token + 1) % vocabulary])
        else:
            samplings.append(policy)
        end = checker.check(token)
        if end is not None:
            break
    if end is None:  # vLLM ends completions at a stop token, at max_tokens, or at its own limit
        needed = len(request.prompt_ids) + request.max_tokens
        raise EngineUnavailable(
            f"vLLM ended a completion after {len(tokens)} of {request.max_tokens} tokens, because "
            "its --max-model-len is too small",
            f"Start vLLM's server with --max-model-len {needed}, or more.",
        )
    return Completion(
        token_ids=list(tokens[: len(policies)]),
        sampling_logprobs=samplings,
        policy_logprobs=policies,
        finish_reason=end[0],
        stop_reason=end[1],
    )
