"""Reinforcement runs that are ready for their first step, in the form that the self-check takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.engine.patches.models import COMMON, FAMILIES, model_of, scored_by_trl, with_lora
from tunesmith_schema import Recipe
from tunesmith_worker.engine.model.base_model import Base
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.rollout import NativeEngine, Request, RolloutPlan, eos_token_ids
from tunesmith_worker.engine.rollout.weights import Layout
from tunesmith_worker.rundir.plan import LoadPlan
from tunesmith_worker.trainer.selfcheck.check_context import (
    PromptAndCompletion,
    ReinforcementContext,
)
from tunesmith_worker.trainer.selfcheck.findings import Outcome
from tunesmith_worker.trainer.selfcheck.rollout_checks import check_rollouts

Untyped = Any  # Any: transformers and TRL are not typed

TOKENIZER = make_tiny_tokenizer()
TEXTS = [
    "<|im_start|>user\nHow much is two plus three?<|im_end|>\n<|im_start|>assistant\n",
    "question",
    "What is the capital of France? Below is an instruction that describes a task.",
    "Write a response. " * 5,
    "hello world",
]


@dataclass(frozen=True)
class Prompt:
    prompt_ids: tuple[int, ...]
    text: str


def prompts_of(texts: Sequence[str]) -> list[Prompt]:
    return [
        Prompt(tuple(TOKENIZER(one, add_special_tokens=False)["input_ids"]), one) for one in texts
    ]


def score_with(model: Untyped, *, packed: bool) -> Callable[..., tuple[torch.Tensor, None]]:
    """Make a score function. `packed` rows are concatenated, as our kernels need; others are padded
    on the right."""

    def score(rows: Sequence[PromptAndCompletion], temperature: float) -> tuple[torch.Tensor, None]:
        wholes = [torch.tensor([*prompt, *completion]) for prompt, completion in rows]
        lengths = [len(one) for one in wholes]
        if packed:
            logits = model(**_end_to_end(wholes), use_cache=False).logits[0].split(lengths)
        else:
            ids = pad_sequence(wholes, batch_first=True)
            mask = pad_sequence([torch.ones_like(one) for one in wholes], batch_first=True)
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        found = []
        for scores, (prompt, completion) in zip(logits, rows, strict=True):
            own = scores[len(prompt) - 1 : len(prompt) + len(completion) - 1].float() / temperature
            tokens = torch.tensor(completion)[:, None]
            found.append(own.log_softmax(-1).gather(1, tokens)[:, 0])
        return pad_sequence(found, batch_first=True), None

    return score


def _end_to_end(rows: Sequence[torch.Tensor]) -> dict[str, Untyped]:
    lengths = [len(one) for one in rows]
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {
        "input_ids": torch.cat(list(rows))[None],
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def make_subject(
    family: str = "llama",
    *,
    engine: Callable[[Untyped], Untyped] | None = None,
    weights: Layout = "merged",
    patched: bool = True,
    lora: bool = True,
    dtype: torch.dtype = torch.float32,
    texts: Sequence[str] = TEXTS,
    free: int = 1 << 34,
    **recipe: Untyped,
) -> ReinforcementContext:
    """Make a run. `engine` makes an engine from the model; None: the native engine."""
    config = FAMILIES[family]()
    config.vocab_size = len(TOKENIZER)
    plain = model_of(config)
    for parameter in plain.parameters():  # `.to(dtype)` would also convert RoPE's frequencies
        parameter.data = parameter.data.to(dtype)
    plain.generation_config.eos_token_id = [TOKENIZER.eos_token_id, 4]
    model = scored_by_trl(with_lora(plain) if lora else plain)
    model.train()
    given = Recipe.model_validate({"tuning": "lora" if lora else "full", **recipe})
    plan = RolloutPlan(weights=weights, max_rows=8)
    trainer = SimpleNamespace(model=model, args=SimpleNamespace(device=torch.device("cpu")))
    stops = eos_token_ids(plain, TOKENIZER)

    def requests(prompts: Sequence[tuple[int, ...]]) -> list[Request]:
        return [
            Request(
                prompt_ids=one,
                max_tokens=40,
                seed=(1 << 64) - 1 - place,  # large: a group adds to it and wraps
                sampling=subject.sampling,
                stop_token_ids=stops,
            )
            for place, one in enumerate(prompts)
        ]

    unknown: Untyped = None  # not used by these checks
    subject = ReinforcementContext(
        trainer=trainer,
        base=Base(model=plain, tokenizer=TOKENIZER, context=COMMON["max_position_embeddings"]),
        patched=patch(model) if patched else None,
        engine=(engine or (lambda one: NativeEngine(one, plan)))(model),
        score=score_with(model, packed=patched),
        requests=requests,
        prompts=prompts_of(texts),
        recipe=given,
        load_plan=LoadPlan(precision="fp32" if dtype == torch.float32 else "bf16"),
        train_plan=unknown,
        free=free,
        optimizer_bytes=0,
        folder=Path(),
    )
    return subject


def states(outcomes: Sequence[Outcome]) -> dict[str, str]:
    return {one.check: one.state for one in outcomes}


def faults(subject: ReinforcementContext) -> dict[str, str]:
    """Return the errors of the checks that run the model, as messages by check."""
    return {
        finding.check: finding.message
        for one in check_rollouts(subject)
        for finding in one.findings
        if finding.level == "error"
    }
