"""Whether a prompt reaches the engine whole, and is asked for as the recipe says.

The trap: a limit somewhere between data and engine cuts prompts, and the model is rewarded for
answers to half a question.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.rollout import Request, SamplingParams

from .findings import Finding
from .rollout_subject import ReinforcementSubject, TokenIds
from .subject import Outcome, Untyped, judged

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
