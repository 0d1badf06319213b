"""Recorded steps draw what steps draw that are not recorded: by tape.py, on a CPU."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import FAMILIES, make_model, with_lora
from tunesmith_worker.engine.rollout import Interrupted, Request, SamplingParams, batch, native
from tunesmith_worker.engine.rollout.cache import RowCache
from tunesmith_worker.engine.rollout.decoder import Decoder

from .rollouts import (
    GREEDY,
    LAYOUTS,
    assert_logprobs_equal_a_forward,
    engine_of,
    greedy,
    make_prompts,
)
from .scalings import ORIGINAL, SCALINGS, logprobs_by_prefix, make_scaled
from .tape import REFUSAL, Refusing, Tape

Untyped = Any  # Any: transformers is not typed


def recorded(monkeypatch: pytest.MonkeyPatch, tape: Tape) -> None:
    monkeypatch.setattr(native, "recorder_for", lambda device: tape)


def ragged(count: int = 9, new: int = 9) -> list[Request]:
    """Of three unequal prompts; rows end one after another, and the batch shrinks."""
    prompts = make_prompts(5, 30, 12)
    return [
        Request(prompt_ids=prompts[i % 3], max_tokens=new + i, seed=i, sampling=SamplingParams())
        for i in range(count)
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", LAYOUTS)
def test_recorded_steps_draw_what_others_draw(
    monkeypatch: pytest.MonkeyPatch, family: str, weights: Untyped
) -> None:
    model = with_lora(make_model(family))
    requests = ragged()
    plain = engine_of(model, weights, max_rows=6)
    expected = plain.generate(requests)
    assert plain.figures.graph_steps == 0
    recorded(monkeypatch, tape := Tape())
    engine = engine_of(model, weights, max_rows=6)
    actual = engine.generate(requests)
    assert [one.token_ids for one in actual] == [one.token_ids for one in expected]
    assert_logprobs_equal_a_forward(model, [one.prompt_ids for one in requests], actual)
    assert engine.figures.recording_error == ""
    assert engine.figures.graph_steps > engine.figures.decode_steps / 2
    assert 1 <= tape.recordings <= 8
    assert tape.reads.found == {}, "a GPU's graph would not be allowed that"


def test_a_recording_keeps_what_the_host_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """So these tests can fail: steps that ask the host how long rows are, and one that reads."""
    recorded(monkeypatch, Tape())
    device_step, told = Decoder.device_step, []

    def by_host(self: Decoder, ids: Untyped, cache: Untyped, *_: Untyped) -> torch.Tensor:
        return device_step(self, ids, cache, self.row_tables(cache))

    def reading(self: Decoder, *given: Untyped) -> torch.Tensor:
        logits = device_step(self, *given)
        told.append(float(logits.sum()))
        return logits

    engine = engine_of(make_model("llama"))
    monkeypatch.setattr(Decoder, "device_step", by_host)
    with pytest.raises(AssertionError, match="host's numbers"):
        engine.generate(ragged())
    tape = Tape()
    recorded(monkeypatch, tape)
    monkeypatch.setattr(Decoder, "device_step", reading)
    engine.generate(ragged())
    assert sum(tape.reads.found.values()) == tape.recordings > 0


def test_what_cannot_be_recorded_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama")
    expected = engine_of(model).generate(ragged())
    recorded(monkeypatch, Refusing())
    engine = engine_of(model)
    actual = engine.generate(ragged())
    assert [one.token_ids for one in actual] == [one.token_ids for one in expected]
    assert engine.figures.graph_steps == 0
    assert engine.figures.recording_error == REFUSAL


@pytest.mark.parametrize(("error", "tries"), [(RuntimeError, 1), (torch.OutOfMemoryError, 3)])
def test_what_failed_is_not_tried_again_unless_for_want_of_memory(
    monkeypatch: pytest.MonkeyPatch, error: type[RuntimeError], tries: int
) -> None:
    """Once a call then: the next one may find more memory."""
    refusing = Refusing(error)
    recorded(monkeypatch, refusing)
    engine = engine_of(make_model("llama"))
    for _ in range(3):
        engine.generate(ragged())
        assert engine.figures.recording_error == REFUSAL
    assert refusing.recordings == tries


def test_an_error_after_a_refusal_does_not_hold_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what could not be recorded."""
    recorded(monkeypatch, Refusing())
    monkeypatch.setattr(Decoder, "step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as held:
        engine_of(make_model("llama")).generate(ragged())
    assert held.value.__context__ is None


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_held_after_a_call(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Neither until Python collects cycles, nor for as long as somebody holds an error."""
    made: list[weakref.ref[RowCache]] = []
    build = RowCache.__init__

    def noted(cache: RowCache, like: Untyped) -> None:
        build(cache, like)
        made.append(weakref.ref(cache))

    monkeypatch.setattr(RowCache, "__init__", noted)
    recorded(monkeypatch, Tape())
    engine = engine_of(make_model("llama"))
    calls = iter(range(100))
    engine.interrupted = lambda: fails and next(calls) > 5
    gc.collect()
    gc.disable()
    try:
        if fails:
            with pytest.raises(Interrupted) as held:
                engine.generate(ragged())
            assert held.value is not None
        else:
            engine.generate(ragged())
        assert len(made) == 1
        assert made[0]() is None
    finally:
        gc.enable()


def test_laws_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw stands outside of what is recorded, and reads what it is given."""
    model = with_lora(make_model("qwen3"))
    laws = [
        SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3),
        SamplingParams(top_k=9, frequency_penalty=0.4),
        GREEDY,
    ]
    requests = [replace(one, sampling=laws[place % 3]) for place, one in enumerate(ragged(12))]
    expected = engine_of(model).generate(requests)
    recorded(monkeypatch, Tape())
    actual = engine_of(model).generate(requests)
    assert [one.token_ids for one in actual] == [one.token_ids for one in expected]
    for a, b in zip(actual, expected, strict=True):
        assert a.sampling_logprobs == pytest.approx(b.sampling_logprobs, abs=2e-5)


@pytest.mark.parametrize(("reserved", "recordings"), [(1024, 1), (70, 2), (0, 3)])
def test_room_is_reserved_so_that_a_recording_lasts(
    monkeypatch: pytest.MonkeyPatch, reserved: int, recordings: int
) -> None:
    """Another room, another recording."""
    monkeypatch.setattr(batch, "_RESERVED", reserved)
    recorded(monkeypatch, tape := Tape())
    model = make_model("llama")
    prompts = make_prompts(5, 9)
    engine = engine_of(model)
    found = greedy(engine, prompts, 150)
    assert_logprobs_equal_a_forward(model, prompts, found)
    assert [len(one.token_ids) for one in found] == [150, 150]
    assert tape.recordings == recordings, "room for 64, 128 and 192 if none is reserved"
    assert engine.figures.graph_steps == 149 - recordings


def test_rows_of_trained_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_lora(make_model("llama"), trainable_token_indices=[5, 9, 77])
    for name, parameter in model.named_parameters():
        if "trainable_tokens_delta" in name:
            torch.nn.init.normal_(parameter.data, generator=torch.Generator().manual_seed(2))
    recorded(monkeypatch, tape := Tape())
    requests = ragged()
    found = engine_of(model).generate(requests)
    assert_logprobs_equal_a_forward(model, [one.prompt_ids for one in requests], found)
    assert tape.recordings > 0
    assert tape.reads.found == {}


@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Short of where a row's frequencies change, at it and beyond."""
    recorded(monkeypatch, tape := Tape())
    model = make_scaled(name)
    prompts = make_prompts(6, 20, ORIGINAL + 3)
    found = greedy(engine_of(model), prompts, 30)
    for prompt, one in zip(prompts, found, strict=True):
        expected = logprobs_by_prefix(model, prompt, one.token_ids)
        assert one.policy_logprobs == pytest.approx(expected, abs=2e-4)
    assert tape.recordings > 0
