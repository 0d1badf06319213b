"""Checks that prompts, sampling parameters, positions and stop tokens reach the rollout engine.

Typical faults: a length limit truncates prompts; RoPE frequencies are rounded, so that training and
rollouts are equally wrong; an engine obeys only one of several stop tokens.
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
from tunesmith_worker.engine.scientific import scientific

from .check_context import ReinforcementContext, TokenIds, Untyped
from .findings import REPORT_HINT, Finding, Outcome, make_outcome, not_applicable
from .model_runs import backbone_of
from .rollout_parity import fault

SAMPLE = 256
"""Number of evenly spaced prompts to tokenize again. The longest prompt is also tokenized again."""
FREQUENCY = 1e-5
"""Relative tolerance of a RoPE frequency, for fp32 rounding on different devices."""
ANGLE = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Tolerance of a cosine or sine in the RoPE tables, for each dtype."""
_TOKENS = 1024
"""Number of token positions in the comparison of RoPE tables."""
_PLACES = (1, 4)
"""Positions in a greedy completion whose tokens the check uses as stop tokens.

Several stop tokens are tested, because an engine may obey only one stop token.
"""


def check_prompts(context: ReinforcementContext) -> Outcome:
    """Check `prompts`: the token ids match the whole rendered text."""
    count = len(context.prompts)
    places = {count * i // SAMPLE for i in range(SAMPLE)} if count > SAMPLE else set(range(count))
    places.add(max(range(count), key=lambda i: len(context.prompts[i].prompt_ids)))
    tokenizer = context.base.tokenizer
    wrong = []
    for place in sorted(places):
        prompt = context.prompts[place]
        expected = _tokens(tokenizer, prompt.text)
        if list(prompt.prompt_ids) not in expected:
            wrong.append((len(prompt.prompt_ids), len(expected[0])))
    findings = []
    if wrong:
        actual_tokens, expected_tokens = wrong[0]
        cut = sum(actual < expected for actual, expected in wrong)
        findings.append(
            prompt_fault(
                "prompts",
                f"{len(wrong)} of {len(places)} checked prompts have other token ids than the "
                f"tokenizer gives (tolerance: 0), and {cut} of them are truncated. The first wrong "
                f"prompt has {actual_tokens} tokens, but its text has {expected_tokens}.",
            )
        )
    return make_outcome("prompts", findings, f"{len(places)} prompts match their text")


def check_requests(context: ReinforcementContext) -> Outcome:
    """Check `rollout_requests`: requests have whole prompts and the recipe's sampling parameters.

    The trainer must score completions at the recipe's sampling temperature.
    """
    prompts = context.select_prompts(room=0) or [context.prompts[0].prompt_ids]
    requests = context.requests(prompts)
    findings = [*_changed_prompts(prompts, requests), *_wrong_sampling(context.sampling, requests)]
    temperature = context.sampling.temperature
    trained = float(getattr(context.trainer.args, "temperature", temperature))
    if trained != temperature:
        findings.append(
            prompt_fault(
                "rollout_requests",
                f"the trainer scores at temperature {trained:g}, but recipe.grpo.temperature is "
                f"{temperature:g} (tolerance: 0).",
            )
        )
    return make_outcome("rollout_requests", findings, f"at temperature {temperature:g}")


def check_prompts_seen(requests: Sequence[Request], seen: int | None) -> Outcome:
    """Check `prompts_seen`: the engine read every token of the prompts.

    `seen`: number of prompt tokens that the engine read; None if the engine does not count.
    """
    name = "prompts_seen"
    if seen is None:
        return make_outcome(name, [], "this engine does not count prompt tokens")
    requested = sum(len(ids) for ids in {request.prompt_ids for request in requests})
    findings = []
    if seen != requested:
        findings.append(
            prompt_fault(
                name,
                f"the engine read {seen} prompt tokens, but the prompts have {requested} "
                "(tolerance: 0): "
                f"it {'truncates' if seen < requested else 'adds to'} prompts.",
            )
        )
    return make_outcome(name, findings, f"{seen} prompt tokens read")


def prompt_fault(check: str, message: str) -> Finding:
    return Finding(check, message, REPORT_HINT, category=ErrorCategory.INFRASTRUCTURE)


def _tokens(tokenizer: Untyped, text: str) -> list[list[int]]:
    """Return two lists of token ids for a text: without and with added special tokens. A rendered
    template already contains special tokens; plain text does not."""
    return [tokenizer(text, add_special_tokens=added)["input_ids"] for added in (False, True)]


def _changed_prompts(prompts: Sequence[TokenIds], requests: Sequence[Request]) -> list[Finding]:
    if len(requests) != len(prompts):
        words = f"{len(prompts)} prompts led to {len(requests)} requests (tolerance: 0)."
        return [prompt_fault("rollout_requests", words)]
    for prompt, request in zip(prompts, requests, strict=True):
        if request.prompt_ids != prompt:
            tokens = len(request.prompt_ids)
            kind = "truncated prompt" if tokens < len(prompt) else "different prompt"
            return [
                prompt_fault(
                    "rollout_requests",
                    f"{kind}: the trainer requests {tokens} tokens of a prompt that has "
                    f"{len(prompt)} (tolerance: 0).",
                )
            ]
    return []


def _wrong_sampling(expected: SamplingParams, requests: Sequence[Request]) -> list[Finding]:
    wrong = [request.sampling for request in requests if request.sampling != expected]
    if not wrong:
        return []
    return [
        prompt_fault(
            "rollout_requests",
            f"the trainer samples with {wrong[0]}, but recipe.grpo says {expected} (tolerance: 0).",
        )
    ]


def check_positions(context: ReinforcementContext) -> Outcome:
    """Check `positions`: the RoPE frequencies of model and engine match config.json."""
    name = "positions"
    rotary = getattr(backbone_of(context.model), "rotary_emb", None)
    if rotary is None or not hasattr(rotary, "rope_type"):
        return not_applicable(name, "the model does not use the RoPE of transformers")
    expected = type(rotary)(rotary.config)
    off, buffer = _frequency_error(rotary, expected)
    if not off <= FREQUENCY:
        finding = prompt_fault(
            name,
            f"wrong inv_freq: the model's {buffer} differs from config.json by {off:.1e} "
            f"(relative; tolerance {FREQUENCY:.0e}).",
        )
        return make_outcome(name, [finding], "")
    if context.engine.name != "native":
        return make_outcome(name, [], f"frequencies match within {scientific(off, 0)}")
    dtype, device = context.model.dtype, context.device
    apart, limit = _table_error(rotary, expected.to(device), dtype, device), ANGLE[dtype]
    findings = []
    if not apart <= limit:
        findings.append(
            prompt_fault(
                name,
                "wrong inv_freq: the rollout engine's cosines and sines differ from config.json "
                f"by {apart:.1e} (tolerance {limit:.0e}).",
            )
        )
    detail = (
        f"frequencies match within {scientific(off, 0)}, cosines and sines within "
        f"{scientific(apart, 0)}"
    )
    return make_outcome(name, findings, detail)


def _frequency_error(rotary: Untyped, expected: Untyped) -> tuple[float, str]:
    """Return the largest relative error of a frequency buffer, and the buffer's name.

    If a model's frequencies depend on the row length, only `original_inv_freq` is compared.
    """
    worst, worst_name = 0.0, "inv_freq"
    for name, right in expected.named_buffers():
        if "inv_freq" not in name or (_is_dynamic(rotary) and "original_" not in name):
            continue
        actual = getattr(rotary, name, None)
        if actual is None or actual.shape != right.shape:
            return math.inf, name
        least = torch.finfo(right.dtype).tiny  # some models leave dimensions at frequency 0
        apart = float(((actual.float().cpu() - right).abs() / right.abs().clamp_min(least)).max())
        if not apart <= worst:
            worst, worst_name = apart if apart == apart else math.inf, name
    return worst, worst_name


def _is_dynamic(rotary: Untyped) -> bool:
    kinds = rotary.rope_type
    names = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in names)


def _table_error(
    rotary: Untyped, expected: Untyped, dtype: torch.dtype, device: torch.device
) -> float:
    """Return the largest difference between the engine's RoPE tables and the tables of a newly
    created RoPE module.
    """
    tables = RopeTables(rotary, dtype, device)
    kinds = rotary.rope_type
    worst = 0.0
    length = min(_TOKENS, tables.stable_length or _TOKENS)
    places = torch.arange(length, device=device)[None]
    x = torch.empty(1, 0, dtype=torch.float32, device=device)
    for name in kinds if isinstance(kinds, dict) else [None]:
        table = tables.table(name, tables.rope_key(length), length)
        right = expected(x, places) if name is None else expected(x, places, name)
        half = right[0].shape[-1] // 2
        # Prompts use cos and sin; single tokens use the doubled table.
        doubled = (table.doubled[:, 0, :half], table.doubled[:, 1, half:])
        pairs = zip((table.cos, table.sin, *doubled), (*right, *right), strict=True)
        for actual, wanted in pairs:
            apart = float((actual[:length] - wanted[0, :, :half]).abs().max())
            worst = apart if not apart <= worst else worst
    return worst


def check_stop_tokens(context: ReinforcementContext) -> Outcome:
    """Check `stop_tokens`: requests have every end token of the model and its tokenizer."""
    name = "stop_tokens"
    config_ids = getattr(context.model.generation_config, "eos_token_id", None)
    listed = config_ids if isinstance(config_ids, list | tuple) else [config_ids]
    ends = {id_ for id_ in (*listed, context.base.tokenizer.eos_token_id) if id_ is not None}
    (request,) = context.requests([context.prompts[0].prompt_ids])
    missing = sorted(ends - request.stop_token_ids)
    findings = []
    if missing:
        words = ", ".join(map(repr, context.base.tokenizer.convert_ids_to_tokens(missing)))
        findings.append(
            prompt_fault(
                name,
                f"{len(missing)} of {len(ends)} tokens that end a turn do not end a completion "
                f"(tolerance: 0): {words}. Completions would continue after the end of the turn.",
            )
        )
    elif not request.stop_token_ids and not request.stop:
        findings.append(
            Finding(
                name,
                "neither the model nor its tokenizer has a token that ends a turn: every "
                "completion would reach max_completion_length.",
                "Use a base model whose generation_config.json has eos_token_id.",
                level="warn",
                param="model",
            )
        )
    return make_outcome(name, findings, f"{len(ends)} tokens end a completion")


def check_ends(engine: RolloutEngine, request: Request, greedy: Completion) -> Outcome:
    """Check `completions_end`: a completion ends with its first stop token.

    `request`: a greedy request without stop tokens. `greedy`: the completion of `request`; its
    tokens become stop tokens in new requests.
    """
    tokens = greedy.token_ids
    probes = [
        replace(request, stop_token_ids=frozenset({tokens[place], *_unused_ids(tokens)}))
        for place in _PLACES
        if place < len(tokens)
    ]
    completions = engine.generate(probes)
    findings = _wrong_end([request, *probes], [greedy, *completions])
    return make_outcome("completions_end", findings, f"{len(probes)} stop tokens obeyed")


def _wrong_end(requests: Sequence[Request], completions: Sequence[Completion]) -> list[Finding]:
    """Return a finding for the first completion with a wrong end or finish reason.

    A completion without its stop token is ignored, because rounding may have changed the
    completion.
    """
    for request, completion in zip(requests, completions, strict=True):
        tokens = completion.token_ids
        stops = [i for i, token in enumerate(tokens) if token in request.stop_token_ids]
        ended = stops == [len(tokens) - 1]
        reported = completion.finish_reason == FinishReason.STOP
        if ended != reported or (stops and not ended) or len(tokens) > request.max_tokens:
            return [
                fault(
                    "completions_end",
                    f"a completion of {len(tokens)} tokens (limit {request.max_tokens}) has stop "
                    f"tokens at positions {[i + 1 for i in stops]}, but its finish reason is "
                    f"'{completion.finish_reason}' (tolerance: 0).",
                )
            ]
    return []


def _unused_ids(tokens: Sequence[int]) -> list[int]:
    free = (i for i in range(len(tokens) + 1) if i not in tokens)
    return [next(free), max(tokens) + 1]
