"""When completions end, and why they say they did."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.engine.patches.models import COMMON, make_model, model_of
from tunesmith_worker.engine.rollout import FinishReason, Request, UnusableRequest, eos_token_ids
from tunesmith_worker.engine.rollout.stopping import StopChecker

from .rollouts import engine_of, make_prompts

Untyped = Any  # Any: transformers is not typed


@pytest.fixture(scope="module")
def tokenizer() -> Untyped:
    return make_tiny_tokenizer()


def _ends(tokenizer: Untyped, text: str, *stop: str, most: int = 99) -> tuple[int, object]:
    """After how many tokens of `text`, and by what."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    watch = StopChecker(Request(prompt_ids=(1,), max_tokens=most, seed=0, stop=stop), tokenizer)
    for place, token in enumerate(ids, start=1):
        end = watch.check(token)
        if end is not None:
            return place, end[1]
    return len(ids), None


@pytest.mark.parametrize("others", [(), ("z",), ("nowhere in it",)])
def test_a_stop_text_that_spans_tokens_ends_with_the_token_that_completes_it(
    tokenizer: Untyped, others: tuple[str, ...]
) -> None:
    text = "The capital of France is Paris. QQ END more"
    place, reason = _ends(tokenizer, text, "Q END", *others)
    assert reason == "Q END"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "Q END" in tokenizer.decode(ids[:place])
    assert "Q END" not in tokenizer.decode(ids[: place - 1])
    pieces = [tokenizer.decode([one]) for one in ids]
    assert not any("Q END" in piece for piece in pieces)


def test_the_stop_text_that_begins_first_is_the_reason(tokenizer: Untyped) -> None:
    assert _ends(tokenizer, "France is Paris.", "Paris", "is Paris", "never")[1] == "is Paris"


def test_a_character_of_several_tokens_is_found_when_it_is_whole(tokenizer: Untyped) -> None:
    text = "yes é no"
    place, reason = _ends(tokenizer, text, "é")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert reason == "é"
    assert "é" in tokenizer.decode(ids[:place])
    assert "é" not in tokenizer.decode(ids[: place - 1])


def test_a_special_token_may_be_a_stop_text(tokenizer: Untyped) -> None:
    assert _ends(tokenizer, "hello<|im_end|>there", "<|im_end|>")[1] == "<|im_end|>"


def test_text_without_the_stop_goes_on(tokenizer: Untyped) -> None:
    assert _ends(tokenizer, "hello there world", "worlds", "xyz")[1] is None


def test_a_stop_token_is_kept_and_named() -> None:
    engine = engine_of(make_model("llama"))
    (prompt,) = make_prompts(6)
    whole = engine.generate([Request(prompt_ids=prompt, max_tokens=20, seed=3)])[0]
    assert whole.finish_reason is FinishReason.LENGTH
    assert whole.stop_reason is None
    last = whole.token_ids[7]
    first = whole.token_ids.index(last)
    stops = frozenset({last, 999})
    one = engine.generate(
        [Request(prompt_ids=prompt, max_tokens=20, seed=3, stop_token_ids=stops)]
    )[0]
    assert one.token_ids == whole.token_ids[: first + 1]
    assert (one.finish_reason, one.stop_reason) == (FinishReason.STOP, last)


@pytest.mark.parametrize("place", [0, 4])
def test_a_stop_at_the_last_token_allowed_is_a_stop(place: int) -> None:
    engine = engine_of(make_model("llama"))
    (prompt,) = make_prompts(6)
    whole = engine.generate([Request(prompt_ids=prompt, max_tokens=5, seed=3)])[0]
    assert whole.token_ids.index(whole.token_ids[place]) == place
    stops = frozenset({whole.token_ids[place]})
    request = Request(prompt_ids=prompt, max_tokens=place + 1, seed=3, stop_token_ids=stops)
    assert engine.generate([request])[0].finish_reason is FinishReason.STOP


def test_stop_texts_in_a_rollout_with_other_rows(tokenizer: Untyped) -> None:
    model = model_of(transformers.LlamaConfig(**COMMON | {"vocab_size": len(tokenizer)}))
    engine = engine_of(model, max_rows=2, tokenizer=tokenizer)
    (prompt,) = make_prompts(6)
    plain = engine.generate([Request(prompt_ids=prompt, max_tokens=40, seed=i) for i in range(4)])
    texts = [tokenizer.decode(one.token_ids) for one in plain]
    stop = texts[1][8:12]
    requests = [Request(prompt_ids=prompt, max_tokens=40, seed=i, stop=(stop,)) for i in range(4)]
    for text, one, whole in zip(texts, engine.generate(requests), plain, strict=True):
        assert one.token_ids == whole.token_ids[: len(one.token_ids)]
        assert (stop in text) == (one.finish_reason is FinishReason.STOP)
        if stop in text:
            assert stop in tokenizer.decode(one.token_ids)
            assert stop not in tokenizer.decode(one.token_ids[:-1])


def test_stop_texts_without_a_tokenizer_are_refused() -> None:
    engine = engine_of(make_model("llama"))
    with pytest.raises(UnusableRequest, match="stop texts need a tokenizer"):
        engine.generate([Request(prompt_ids=(5,), max_tokens=2, seed=0, stop=("a",))])


def test_end_tokens_are_those_of_the_model_and_of_the_tokenizer(tokenizer: Untyped) -> None:
    model = make_model("llama")
    for given, expected in (([7, 9], {7, 9}), (11, {11}), (None, set())):
        model.generation_config.eos_token_id = given
        assert eos_token_ids(model, tokenizer) == expected | {tokenizer.eos_token_id}
