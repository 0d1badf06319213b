"""Whether completions end: every token that ends a turn is asked for, and obeyed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.rollout import Completion, FinishReason, Request, RolloutEngine

from .findings import Finding
from .rollout_prompts import prompt_fault
from .rollout_subject import ReinforcementSubject
from .subject import Outcome, judged

_PLACES = (1, 4)
"""Tokens of a greedy completion that are made stop tokens: an engine that obeys one of a list only
is to be seen."""


def check_stop_tokens(subject: ReinforcementSubject) -> Outcome:
    """`stop_tokens`: the trainer asks for every end that the model or its tokenizer names."""
    name = "stop_tokens"
    given = getattr(subject.model.generation_config, "eos_token_id", None)
    listed = given if isinstance(given, list | tuple) else [given]
    ends = {one for one in (*listed, subject.base.tokenizer.eos_token_id) if one is not None}
    (request,) = subject.requests([subject.prompts[0].prompt_ids])
    missing = sorted(ends - request.stop_token_ids)
    findings = []
    if missing:
        words = ", ".join(map(repr, subject.base.tokenizer.convert_ids_to_tokens(missing)))
        findings.append(
            prompt_fault(
                name,
                f"{len(missing)} of {len(ends)} tokens that end a turn do not end a completion "
                f"(tolerance: 0): {words}. Completions would run on behind their end.",
            )
        )
    elif not request.stop_token_ids and not request.stop:
        findings.append(
            Finding(
                name,
                "the model and its tokenizer name no token that ends a turn: every completion "
                "would reach max_completion_length.",
                "Use a base model whose generation_config.json has eos_token_id.",
                level="warn",
                param="model",
            )
        )
    return judged(name, findings, f"{len(ends)} tokens end a completion")


def check_ends(engine: RolloutEngine, request: Request, greedy: Completion) -> Outcome:
    """`completions_end`: drawn again with one of its tokens among the stop tokens, a completion
    ends there, with it. `request` is greedy and without stop tokens; `greedy` its completion."""
    tokens = greedy.token_ids
    probes = [
        replace(request, stop_token_ids=frozenset({tokens[place], *_never(tokens)}))
        for place in _PLACES
        if place < len(tokens)
    ]
    ended = engine.generate(probes)
    findings = _judged([request, *probes], [greedy, *ended])
    return judged("completions_end", findings, f"{len(probes)} stop tokens obeyed")


def _judged(requests: Sequence[Request], completions: Sequence[Completion]) -> list[Finding]:
    """The first completion that does not end where it should, or does not say so. A stop token
    that rounding has kept from being drawn proves nothing."""
    for request, one in zip(requests, completions, strict=True):
        stops = [i for i, token in enumerate(one.token_ids) if token in request.stop_token_ids]
        ended = stops == [len(one.token_ids) - 1]
        told = one.finish_reason == FinishReason.STOP
        if ended != told or (stops and not ended) or len(one.token_ids) > request.max_tokens:
            return [
                _fault(
                    "completions_end",
                    f"a completion of {len(one.token_ids)} tokens (at most {request.max_tokens} "
                    f"were asked for) with stop tokens at places {[i + 1 for i in stops]} says it "
                    f"ended by {one.finish_reason} (tolerance: 0).",
                )
            ]
    return []


def _never(tokens: Sequence[int]) -> list[int]:
    """Two ids that the completion does not have, one below and one above most."""
    free = (i for i in range(len(tokens) + 1) if i not in tokens)
    return [next(free), max(tokens) + 1]


def _fault(check: str, message: str) -> Finding:
    hint = "This is a fault of the rollout engine: report it with the job's events."
    return Finding(check, message, hint, category=ErrorCategory.INFRASTRUCTURE)
