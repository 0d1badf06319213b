"""Completions are told as they end; whatever goes wrong then, nothing of a rollout stays behind."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import make_model, with_lora
from tunesmith_worker.engine.rollout import Completion, Request
from tunesmith_worker.engine.rollout.cache import RowCache
from tunesmith_worker.engine.rollout.linear import Linear

from .rollouts import LAYOUTS, engine_of, make_prompts

Untyped = Any  # Any: transformers is not typed

PROMPTS = make_prompts(5, 9)


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[object]]:
    """What a rollout makes that takes memory."""
    made: list[weakref.ref[object]] = []

    def watched(stock: Callable[..., None]) -> Callable[..., None]:
        def init(self: object, *given: object) -> None:
            made.append(weakref.ref(self))
            stock(self, *given)

        return init

    for kind in (RowCache, Linear):
        monkeypatch.setattr(kind, "__init__", watched(kind.__init__))
    return made


def _requests(*lengths: int) -> list[Request]:
    return [
        Request(prompt_ids=PROMPTS[place % 2], max_tokens=n, seed=place)
        for place, n in enumerate(lengths)
    ]


def test_each_completion_is_told_once_with_its_place_as_soon_as_it_ends() -> None:
    engine = engine_of(make_model("llama"))
    told: list[tuple[int, Completion, int]] = []
    requests = _requests(9, 2, 30, 1, 5)
    completions = engine.generate(
        requests, lambda place, one: told.append((place, one, engine.figures.decode_steps))
    )
    # The first token comes with the prompt.
    assert sorted((place, step) for place, _, step in told) == [
        (0, 8), (1, 1), (2, 29), (3, 0), (4, 4)
    ]  # fmt: skip
    assert [place for place, _, _ in told] == [3, 1, 4, 0, 2]
    assert all(one is completions[place] for place, one, _ in told)
    assert engine.generate(requests) == completions


def test_what_is_told_may_be_trained_on_although_the_rollout_records_no_gradients() -> None:
    weight = torch.ones(1, requires_grad=True)

    def grade(place: int, completion: Completion) -> None:
        (weight * torch.tensor(completion.policy_logprobs)).sum().backward()

    engine_of(make_model("llama")).generate(_requests(2, 3), grade)
    assert weight.grad is not None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_error_of_the_one_told_ends_the_rollout_and_leaves_nothing(
    layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while the error is held, with its traceback and every frame of it."""
    made = _watch(monkeypatch)
    model = with_lora(make_model("llama"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = engine_of(model, layout)

    def refuse(place: int, completion: Completion) -> None:
        raise LookupError(f"no grader for {place}")

    with pytest.raises(LookupError, match="no grader for 1") as held:
        engine.generate(_requests(9, 4), refuse)
    gc.collect()
    assert held.tb is not None
    assert len(made) > 3
    assert all(one() is None for one in made)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    monkeypatch.undo()
    assert len(engine.generate(_requests(9, 4))) == 2


def test_nothing_of_a_rollout_is_held_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _watch(monkeypatch)
    engine = engine_of(with_lora(make_model("llama")))
    engine.generate(_requests(3, 4))
    gc.collect()
    assert len(made) > 3
    assert all(one() is None for one in made)


def test_the_phases_sum_to_the_whole_and_the_one_told_has_its_own() -> None:
    engine = engine_of(with_lora(make_model("llama")))
    start = time.perf_counter()
    engine.generate(_requests(12, 3), lambda place, one: time.sleep(0.05))
    whole = time.perf_counter() - start
    figures = engine.figures
    phases = (figures.sync, figures.prefill, figures.decode, figures.callback)
    assert 0.97 * whole <= sum(one.wall_seconds for one in phases) <= whole
    assert figures.callback.wall_seconds >= 0.1
    assert figures.callback.cpu_seconds < 0.05
    assert all(one.wall_seconds > 0.0 < one.cpu_seconds for one in phases[:3])
