"""Sound rollouts raise no alarm, whatever model and precision; and looking changes no bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import equal_bits
from tunesmith_worker.engine.rollout import NativeEngine, Request, plan_rollout
from tunesmith_worker.engine.rollout.weights import Layout
from tunesmith_worker.trainer.methods.completion_scores import score_completions
from tunesmith_worker.trainer.methods.groups import GroupLayout, GroupRow
from tunesmith_worker.trainer.selfcheck.check_context import PromptAndCompletion
from tunesmith_worker.trainer.selfcheck.rollout_checks import check_rollouts
from tunesmith_worker.trainer.selfcheck.rollout_prompts import (
    check_positions,
    check_prompts,
    check_requests,
    check_stop_tokens,
)

from .engines import LeftPadded
from .subjects import make_subject, states

Untyped = Any  # Any: transformers is not typed

BF16 = {"dtype": torch.bfloat16}
FULL = {"lora": False}
CASES: list[tuple[str, dict[str, Any]]] = [  # Any: JSON
    ("llama", {"grpo": {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.02}}),
    ("llama-3-rope", {"weights": "in_place"}),
    ("qwen2-sliding", BF16),
    ("qwen3", FULL | {"weights": "in_place"}),
    ("gemma2", BF16 | {"weights": "in_place"}),
    ("gemma3", BF16 | {"free": 1_500_000}),  # fp32 has room for its first layer
    ("phi3", {"patched": False}),
    ("olmo2", FULL),
    ("granite", FULL | BF16),
    ("hyperclovax", BF16 | {"free": 0}),
]


@pytest.mark.parametrize(("family", "given"), CASES)
def test_good_rollouts_give_no_alarm(family: str, given: dict[str, Any]) -> None:
    subject = make_subject(family, **given)
    outcomes = [
        check_prompts(subject),
        check_requests(subject),
        check_stop_tokens(subject),
        check_positions(subject),
        *check_rollouts(subject),
    ]
    assert not [finding for one in outcomes for finding in one.findings]
    found = states(outcomes)
    assert set(found.values()) <= {"passed", "not_applicable"}
    assert found["rollout_equals_stock"] == found["rollout_follows_weights"] == "passed"
    coarse = given.get("free") == 0
    assert found["sampling_distribution"] == ("not_applicable" if coarse else "passed")
    assert ("rollout_in_16_bits" in found) == ("dtype" in given and not coarse)


@pytest.mark.parametrize("layout", ["shared", "plain"])
def test_the_trainers_own_scores_give_no_alarm(layout: GroupLayout) -> None:
    subject = make_subject("qwen3")

    def score(rows: Sequence[PromptAndCompletion], temperature: float) -> tuple[torch.Tensor, None]:
        given = [GroupRow(prompt, completion) for prompt, completion in rows]
        found = score_completions(
            subject.model, given, layout=layout, device=subject.device, temperature=temperature
        )
        return found.log_probs, None

    found = states(check_rollouts(replace(subject, score=score)))
    assert found.pop("fresh_adapter") == "not_applicable"
    assert set(found.values()) == {"passed"}


def test_an_engine_that_pads_on_the_left_gives_no_alarm() -> None:
    found = states(check_rollouts(make_subject(engine=LeftPadded)))
    assert found.pop("sampling_distribution") == found.pop("fresh_adapter") == "not_applicable"
    assert set(found.values()) == {"passed"}


@pytest.mark.parametrize("given", [BF16, FULL | {"weights": "in_place"}])
def test_the_model_is_afterwards_what_it_was(given: dict[str, Any]) -> None:
    """Weights, adapter, buffers, gradients, modes, flags, random numbers."""
    subject = make_subject("gemma3", **given)
    model = subject.model
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 3.0)

    def state() -> tuple[dict[str, torch.Tensor], Untyped]:
        bits = {name: one.detach().clone() for name, one in model.state_dict().items()}
        bits |= {f"buffer {name}": one.clone() for name, one in model.named_buffers()}
        bits |= {
            f"grad {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        }
        bits["random"] = torch.get_rng_state()
        modes = [(n, m.training) for n, m in model.named_modules()]
        trains = [(n, p.requires_grad, p.dtype) for n, p in model.named_parameters()]
        return bits, (modes, trains)

    (before, other), outcomes = state(), check_rollouts(subject)
    after, now = state()
    assert not [finding for one in outcomes for finding in one.findings]
    assert equal_bits(after, before)
    assert now == other


def test_prompts_beyond_one_law_of_positions_are_not_judged() -> None:
    """Dynamic RoPE: a forward of the whole sequence has other frequencies than each token had."""
    subject = make_subject()

    class Short(NativeEngine):
        stable_length = 4

    subject.engine.__class__ = Short
    (outcome,) = check_rollouts(subject)
    assert outcome.state == "not_applicable"


@pytest.mark.parametrize("weights", ["merged", "in_place"])
def test_b2_max_seq_length_changes_no_bit(weights: Layout) -> None:
    """The length limit bounds memory; it never changes what is computed."""
    subject = make_subject("llama-3-rope", weights=weights)
    ids = subject.prompts[0].prompt_ids
    rows = [(ids, tuple(range(20, 30))), (subject.prompts[1].prompt_ids, (7, 8, 9))]
    found = []
    for limit in (1024, 16_000, 65_536):
        plan = plan_rollout(
            subject.model, rows=4, prompt_tokens=limit, max_tokens=limit, free=1 << 40
        )
        engine = NativeEngine(subject.model, replace(plan, weights=weights))
        (one,) = engine.generate([Request(prompt_ids=ids, max_tokens=12, seed=3)])
        more = Request(
            prompt_ids=ids, max_tokens=limit, seed=3, stop_token_ids=frozenset(range(400))
        )
        (first,) = engine.generate([more])
        with torch.no_grad():
            training, _ = subject.score(rows, 1.0)
        found.append((one, first, training.tolist()))
    assert found[0] == found[1] == found[2]
