"""Every fault that is planted into rollouts is found before the first step, and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunesmith_worker.engine.patches import projections
from tunesmith_worker.engine.rollout import Request, fold
from tunesmith_worker.engine.rollout.attention import StepAttention
from tunesmith_worker.engine.rollout.rope_tables import RopeTable, RopeTables
from tunesmith_worker.trainer.selfcheck.check_context import ReinforcementContext
from tunesmith_worker.trainer.selfcheck.model_runs import disabled_adapter
from tunesmith_worker.trainer.selfcheck.rollout_prompts import (
    check_positions,
    check_prompts,
    check_requests,
    check_stop_tokens,
)

from . import engines
from .subjects import Prompt, faults, make_subject, score_with

Untyped = Any  # Any: transformers and PEFT are not typed
FULL = {"lora": False}

ENGINES: dict[str, tuple[Callable[[Untyped], Untyped], dict[str, Any], str, str]] = {  # Any: JSON
    "adapter not used": (engines.WithoutAdapter, {}, "rollout_equals_stock", "adapter not used"),
    "stale adapter": (engines.OneCallLate, {}, "rollout_follows_weights", "stale weights"),
    "stale weights": (engines.OneCallLate, FULL, "rollout_follows_weights", "stale weights"),
    "neighbour's prompt": (engines.NeighboursPrompt, {}, "rollout_rows_apart", "rows attend"),
    "padding mask ignored": (
        engines.LeftPaddedWithoutMask,
        {},
        "rollout_rows_apart",
        "to padding",
    ),
    "truncated prompt": (engines.CutsPrompts, {}, "prompts_seen", "truncates prompts"),
    "truncated in secret": (
        engines.CutsPromptsAndSaysNothing,
        {},
        "rollout_equals_stock",
        "truncated prompt (8 tokens remain, the start is cut) in the engine",
    ),
    "other temperature": (
        engines.OtherTemperature,
        {},
        "rollout_equals_stock",
        "temperature 0.7 in the engine",
    ),
    "other temperature in secret": (
        engines.OtherTemperatureInSecret,
        {},
        "sampling_distribution",
        "match temperature 0.7",
    ),
    "no end": (engines.EndlessEngine, {}, "completions_end", "its finish reason is 'length'"),
    "one end of a list": (
        engines.OneStopTokenOnly,
        {},
        "completions_end",
        "finish reason is 'length'",
    ),
}


@pytest.mark.parametrize("name", ENGINES)
def test_a_fault_of_the_engine_is_named(name: str) -> None:
    engine, given, check, words = ENGINES[name]
    found = faults(make_subject(engine=engine, **given))
    assert list(found) == [check], found
    assert words in found[check]


def test_a_mask_that_is_ignored_in_the_native_engine_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the mask, a shorter prompt also sees the positions after its end."""

    def unmasked(self: Untyped, window: int | None) -> None:
        for buffer in (self._scores, self._weights):
            buffer.nan_to_num_().clamp_(-5, 5)  # what is not hidden is whatever was there

    monkeypatch.setattr(StepAttention, "_mask", unmasked)
    found = faults(make_subject())
    assert "rows attend to other rows" in found["rollout_rows_apart"], found


def test_wrong_frequencies_in_the_engine_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """RoPE is off by a factor of two, as if the code had forgotten a scaling."""
    right = RopeTables.table

    def stretched(self: Untyped, name: Untyped, rope_key: int, length: int) -> Untyped:
        found = right(self, name, rope_key, 2 * length)
        return RopeTable(found.cos[::2], found.sin[::2], found.doubled[::2])

    monkeypatch.setattr(RopeTables, "table", stretched)
    subject = make_subject()
    (finding,) = check_positions(subject).findings
    assert finding.message.startswith("wrong inv_freq: the rollout engine's cosines and sines")
    found = faults(subject)
    assert found["rollout_equals_stock"].startswith("wrong positions or attention in the engine")


def test_frequencies_that_were_rounded_on_the_way_are_named() -> None:
    """Engine and trainer agree, but both use the rounded frequencies."""
    subject = make_subject()
    subject.base.model.to(torch.bfloat16).float()
    (finding,) = check_positions(subject).findings
    assert "wrong inv_freq: the model's inv_freq differs from " in finding.message


@pytest.mark.parametrize("where", ["score", "kernels"])
def test_an_adapter_that_is_detached_in_the_trainer_is_named(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer ignores the adapter, while the engine applies it."""
    subject = make_subject()
    if where == "score":
        right = subject.score

        def wrong(rows: Untyped, temperature: float) -> Untyped:
            with disabled_adapter(subject.model):
                return right(rows, temperature)

        subject = replace(subject, score=wrong)
    else:
        read = projections.read_projection
        # Kernels alone: the engine has its own name for it.
        monkeypatch.setattr(
            projections, "read_projection", lambda one: replace(read(one), adapter=None)
        )
    found = faults(subject)
    assert list(found) == ["rollout_equals_training"], found
    assert "adapter not used" in found["rollout_equals_training"]
    assert "in the trainer" in found["rollout_equals_training"]


def test_a_trainer_that_scores_at_another_temperature_is_named() -> None:
    subject = make_subject(grpo={"temperature": 0.6})
    right = score_with(subject.model, packed=True)
    found = faults(replace(subject, score=lambda rows, temperature: right(rows, 1.0)))
    assert found["rollout_equals_training"].startswith("temperature 1 in the trainer"), found


@pytest.mark.parametrize(("silent", "dtype"), [(False, torch.bfloat16), (True, torch.float32)])
def test_a_fold_that_is_not_undone_is_named(
    monkeypatch: pytest.MonkeyPatch, silent: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(fold, "_unfold", lambda *_: None)
    if silent:
        monkeypatch.setattr(fold, "checksum", lambda weight: 0)
    found = faults(make_subject(weights="in_place", dtype=dtype))
    assert list(found) == ["weights_kept"], found
    assert ("21 tensors changed" in found["weights_kept"]) == silent


def _with_requests(change: Callable[[Request], Request]) -> ReinforcementContext:
    subject = make_subject()
    right = subject.requests

    def wrong(prompts: Sequence[tuple[int, ...]]) -> list[Request]:
        return [change(one) for one in right(prompts)]

    return replace(subject, requests=wrong)


def test_a_prompt_that_is_truncated_between_data_and_engine_is_named() -> None:
    cut = _with_requests(lambda one: replace(one, prompt_ids=one.prompt_ids[-10:]))
    (finding,) = check_requests(cut).findings
    assert finding.message.startswith("truncated prompt: the trainer requests 10 tokens of a")


def test_a_prompt_that_is_truncated_in_the_data_is_named() -> None:
    """A prompt that is too long may be dropped or refused, but never cut."""
    subject = make_subject()
    assert not check_prompts(subject).findings
    short = [Prompt(one.prompt_ids[:12], one.text) for one in subject.prompts]
    (finding,) = check_prompts(replace(subject, prompts=short)).findings
    assert (
        "of them are truncated. The first wrong prompt has 12 tokens, but its text has "
        in finding.message
    )


def test_a_law_that_is_not_the_recipes_is_named() -> None:
    hot = _with_requests(lambda one: replace(one, sampling=replace(one.sampling, temperature=1.3)))
    (finding,) = check_requests(hot).findings
    assert "samples with SamplingParams(temperature=1.3" in finding.message
    subject = make_subject()
    subject.trainer.args.temperature = 0.9
    (finding,) = check_requests(subject).findings
    assert "scores at temperature 0.9, but recipe.grpo.temperature is 1" in finding.message


def test_an_end_that_the_trainer_does_not_ask_for_is_named() -> None:
    """A model with several: all but the tokenizer's are forgotten."""
    only = _with_requests(lambda one: replace(one, stop_token_ids=frozenset({2})))
    (finding,) = check_stop_tokens(only).findings
    assert "1 of 2 tokens that end a turn do not end a completion" in finding.message
    assert "'</s>'" in finding.message
