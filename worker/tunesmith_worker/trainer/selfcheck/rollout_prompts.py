"""Whether a prompt reaches the engine whole, and is asked for as the recipe says.

The trap: a limit somewhere between data and engine cuts prompts, and the model is rewarded for
answers to half a question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.rollout import (
    Completion,
    FinishReason,
    Request,
    RolloutEngine,
    SamplingParams,
)
from tunesmith_worker.engine.rollout.rope_tables import RopeTables

from .check_context import ReinforcementSubject, TokenIds, Untyped
from .findings import Finding, Outcome, judged, not_applicable
from .model_runs import backbone_of

SAMPLE = 256
"""Prompts whose text is read into tokens again, evenly spaced; and the longest."""

_REPORT = "Nothing in a recipe does that: report it with the job's events."


def check_prompts(subject: ReinforcementSubject) -> Outcome:
    """`prompts`: token ids are those of the whole rendered text."""
    count = len(subject.prompts)
    places = {count * i // SAMPLE for i in range(SAMPLE)} if count > SAMPLE else set(range(count))
    places.add(max(range(count), key=lambda i: len(subject.prompts[i].prompt_ids)))
    tokenizer = subject.base.tokenizer
    wrong = []
    for place in sorted(places):
        prompt = subject.prompts[place]
        expected = _tokens(tokenizer, prompt.text)
        if list(prompt.prompt_ids) not in expected:
            wrong.append((len(prompt.prompt_ids), len(expected[0])))
    findings = []
    if wrong:
        has, should = wrong[0]
        cut = sum(one < other for one, other in wrong)
        findings.append(
            prompt_fault(
                "prompts",
                f"{len(wrong)} of {len(places)} sampled prompts are not the tokens of their text "
                f"(tolerance: 0), {cut} of them truncated: the first has {has} tokens, its text "
                f"{should}.",
            )
        )
    return judged("prompts", findings, f"{len(places)} prompts whole")


def check_requests(subject: ReinforcementSubject) -> Outcome:
    """`rollout_requests`: what the trainer asks for is each prompt as it is, drawn from the
    recipe's law, which is the one that it trains."""
    prompts = subject.picked(room=0) or [subject.prompts[0].prompt_ids]
    requests = subject.requests(prompts)
    findings = [*_cut(prompts, requests), *_other_laws(subject.sampling, requests)]
    trained = float(getattr(subject.trainer.args, "temperature", subject.sampling.temperature))
    if trained != subject.sampling.temperature:
        findings.append(
            prompt_fault(
                "rollout_requests",
                f"the trainer scores at temperature {trained:g}, recipe.grpo.temperature is "
                f"{subject.sampling.temperature:g} (tolerance: 0).",
            )
        )
    return judged("rollout_requests", findings, f"at temperature {subject.sampling.temperature:g}")


def judged_seen(asked: Sequence[Request], seen: int | None) -> Outcome:
    """`prompts_seen`: the engine has read as many prompt tokens as it was given. `seen`: by its
    own count; None: it has none."""
    name = "prompts_seen"
    if seen is None:
        return judged(name, [], "this engine does not count them")
    given = sum(len(ids) for ids in {one.prompt_ids for one in asked})
    findings = []
    if seen != given:
        findings.append(
            prompt_fault(
                name,
                f"the engine has read {seen} tokens of prompts that have {given} (tolerance: 0): "
                f"it {'truncates' if seen < given else 'adds to'} prompts.",
            )
        )
    return judged(name, findings, f"{seen} tokens of prompts read")


def prompt_fault(check: str, message: str) -> Finding:
    return Finding(check, message, _REPORT, category=ErrorCategory.INFRASTRUCTURE)


def _tokens(tokenizer: Untyped, text: str) -> list[list[int]]:
    """Of a template's text, which brings its special tokens, and of plain text."""
    return [tokenizer(text, add_special_tokens=added)["input_ids"] for added in (False, True)]


def _cut(prompts: Sequence[TokenIds], requests: Sequence[Request]) -> list[Finding]:
    if len(requests) != len(prompts):
        words = f"{len(prompts)} prompts made {len(requests)} requests (tolerance: 0)."
        return [prompt_fault("rollout_requests", words)]
    for prompt, request in zip(prompts, requests, strict=True):
        if request.prompt_ids != prompt:
            has = len(request.prompt_ids)
            what = "truncated prompt" if has < len(prompt) else "other prompt"
            return [
                prompt_fault(
                    "rollout_requests",
                    f"{what}: the trainer asks for {has} tokens of a prompt that has "
                    f"{len(prompt)} (tolerance: 0).",
                )
            ]
    return []


def _other_laws(law: SamplingParams, requests: Sequence[Request]) -> list[Finding]:
    other = [one.sampling for one in requests if one.sampling != law]
    if not other:
        return []
    return [
        prompt_fault(
            "rollout_requests",
            f"the trainer draws from {other[0]}, recipe.grpo says {law} (tolerance: 0).",
        )
    ]


_POSITIONS = "positions"
FREQUENCY = 1e-5
"""Relative, of one: computed in fp32 on this device or another."""
ANGLE = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Of a cosine, by the dtype that it is rounded to."""
_TOKENS = 1024
"""Places that are compared."""


def check_positions(subject: ReinforcementSubject) -> Outcome:
    """`positions`: RoPE's frequencies are those of config.json, in the model and in the engine."""
    rotary = getattr(backbone_of(subject.model), "rotary_emb", None)
    if rotary is None or not hasattr(rotary, "rope_type"):
        return not_applicable(_POSITIONS, "the model has no RoPE of transformers' kind")
    expected = type(rotary)(rotary.config)
    off, where = _frequencies(rotary, expected)
    findings = []
    if not off <= FREQUENCY:
        findings.append(
            prompt_fault(
                _POSITIONS,
                f"wrong inv_freq: the model's {where} is {off:.1e} away from what its config.json "
                f"says, relatively (tolerance {FREQUENCY:.0e}).",
            )
        )
        return judged(_POSITIONS, findings, "")
    dtype = subject.model.dtype
    apart, limit = _tables(rotary, expected.to(subject.device), dtype, subject.device), ANGLE[dtype]
    if not apart <= limit:
        findings.append(
            prompt_fault(
                _POSITIONS,
                f"wrong inv_freq: the cosines and sines of the rollout engine are {apart:.1e} away "
                f"from those of the model's config.json (tolerance {limit:.0e}).",
            )
        )
    return judged(_POSITIONS, findings, f"frequencies equal to {off:.0e}, tables to {apart:.0e}")


def _frequencies(rotary: Untyped, expected: Untyped) -> tuple[float, str]:
    """The largest relative distance of a buffer, and whose. Of a scaling that changes with the
    length only what it starts from stays."""
    worst, where = 0.0, "inv_freq"
    for name, right in expected.named_buffers():
        if "inv_freq" not in name or (_changes(rotary) and "original_" not in name):
            continue
        found = getattr(rotary, name, None)
        if found is None or found.shape != right.shape:
            return math.inf, name
        apart = float(((found.float().cpu() - right).abs() / right.abs()).max())
        if not apart <= worst:
            worst, where = apart if apart == apart else math.inf, name
    return worst, where


def _changes(rotary: Untyped) -> bool:
    kinds = rotary.rope_type
    names = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in names)


def _tables(rotary: Untyped, expected: Untyped, dtype: torch.dtype, device: torch.device) -> float:
    """How far the engine's tables are from a fresh module's."""
    positions = RopeTables(rotary, dtype, device)
    kinds = rotary.rope_type
    worst = 0.0
    length = min(_TOKENS, positions.stable_length or _TOKENS)
    places = torch.arange(length, device=device)[None]
    x = torch.empty(1, 0, dtype=torch.float32, device=device)
    for name in kinds if isinstance(kinds, dict) else [None]:
        table = positions.table(name, positions.rope_key(length), length)
        right = expected(x, places) if name is None else expected(x, places, name)
        half = right[0].shape[-1] // 2
        # Prompts are rotated by the first two, single tokens by their doubles.
        doubled = (table.doubled[:, 0, :half], table.doubled[:, 1, half:])
        pairs = zip((table.cos, table.sin, *doubled), (*right, *right), strict=True)
        for one, other in pairs:
            apart = float((one[:length] - other[0, :, :half]).abs().max())
            worst = apart if not apart <= worst else worst
    return worst


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
    findings = _judge_ends([request, *probes], [greedy, *ended])
    return judged("completions_end", findings, f"{len(probes)} stop tokens obeyed")


def _judge_ends(requests: Sequence[Request], completions: Sequence[Completion]) -> list[Finding]:
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
