"""Parts of the playground: pieces of an answer, words that differ, figures, the same request."""

from __future__ import annotations

import json
import time
from math import log
from typing import Any

import pytest

from tunesmith_server.core.errors import EngineFailed
from tunesmith_server.portal.playground import form, same_as
from tunesmith_server.portal.playground.answer import Answer
from tunesmith_server.portal.playground.differences import differing
from tunesmith_server.portal.playground.pieces import Pieces

Token = dict[str, Any]  # Any: JSON


def token(text: str, chance: float, *others: tuple[str, float]) -> Token:
    top = [{"token": other, "logprob": log(value)} for other, value in others]
    return {"token": text, "logprob": log(chance), "top_logprobs": top}


def event(**document: Any) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def part(text: str | None, finish: str | None = None, *tokens: Token) -> bytes:
    choice: Token = {"delta": {} if text is None else {"content": text}, "finish_reason": finish}
    return event(choices=[choice | ({"logprobs": {"content": [*tokens]}} if tokens else {})])


def test_answers_that_repeat_a_phrase_cost_little_to_compare() -> None:
    one, other = ["word again "] * 750, ["word other "] * 750
    began = time.process_time()
    assert differing([one, other]) == [[], []]
    assert time.process_time() - began < 1.0  # minutes without a bound of the pairs


def test_tones_follow_the_probability() -> None:
    chances = (0.01, 0.05, 0.2, 0.5, 0.9, 1.0)
    found = [Pieces().of("a", [token("a", chance)])[0]["tone"] for chance in chances]
    assert found == [0, 1, 2, 3, 4, 4]


def test_a_token_has_its_alternatives_once_each() -> None:
    tokens = [token(" a\n", 0.5, (" a\n", 0.5), ("\u202e", 0.25), ("rare", 0.004))]
    [piece] = Pieces().of(" a\n", tokens)
    assert piece["detail"] == "“ a↵” 50 %, “[U+202E]” 25 %, “rare” 0.4 %"
    assert "shown" not in piece


def test_tokens_of_an_incomplete_character_wait_for_its_text() -> None:
    pieces = Pieces()
    assert pieces.of("", [token("\ufffd", 0.9)]) == []
    [piece] = pieces.of("é", [token("\ufffd", 0.3)])
    assert (piece["text"], piece["tone"]) == ("é", 2)
    assert piece["detail"].count("90 %") == 1
    # Several tokens in an event are one piece each if their texts are the text.
    both = pieces.of("ab", [token("a", 0.9), token("b", 0.9)])
    assert [piece["text"] for piece in both] == ["a", "b"]
    assert [piece["text"] for piece in pieces.of("Hello", [token(" Hello", 0.9)])] == ["Hello"]
    assert pieces.of("plain\0", []) == [{"text": "plain\0", "shown": "plain␀"}]


@pytest.mark.parametrize("value", [None, "x", float("-inf"), 5.0, -9999.0])
def test_log_probs_of_other_servers_break_nothing(value: object) -> None:
    [piece] = Pieces().of("a", [{"token": "a", "logprob": value, "top_logprobs": None}])
    assert piece["tone"] in (0, 4)


def test_words_that_differ_are_found_across_pieces() -> None:
    one = ["The ", "cat", "s", " sat", " down"]
    other = ["The cat", " sat", " up", " down"]
    assert differing([one, other]) == [[1, 2], [0, 2]]
    assert differing([one, one, ["A cats sat down"]]) == [[], [], [0]]
    assert differing([one]) == [[]]
    assert differing([[], ["new"]]) == [[], [0]]


def test_figures_have_times_and_counts_and_the_reason_of_the_end() -> None:
    answer = Answer()
    assert answer.read(part("") + b": comment\n\n" + b"data: [1]\n\n" + b"data: {half") == []
    assert answer.figures() == "no text"
    assert [piece["text"] for piece in answer.read(part("a ") + part("b"))] == ["a ", "b"]
    assert answer.figures().endswith("to the first token")
    answer.read(part(None, "length"))
    answer.read(event(choices=[], usage={"prompt_tokens": 1200, "completion_tokens": 1}))
    assert answer.figures().endswith(
        "to the first token, 1 token, 1,200 in the prompt, cut at the maximum number of tokens"
    )
    answer.read(part(None, "\u202eodd"))
    assert answer.figures().endswith("[U+202E]odd")


def test_an_error_event_ends_the_answer() -> None:
    with pytest.raises(EngineFailed, match="broke off: no memory") as failed:
        Answer().read(event(error={"message": "no memory", "type": "t", "code": "out_of_memory"}))
    assert failed.value.hint
    with pytest.raises(EngineFailed, match="no reason given"):
        Answer().read(event(error="?"))


def test_forms_of_a_request_quote_what_a_shell_would_read() -> None:
    texts = form.DEFAULTS | {"model1": "base", "model2": "ft:x", "user": "it's $HOME",
                             "sampling": "sampled", "top_p": ""}  # fmt: skip
    found = {item.name: item.text for item in same_as.forms(texts, "http://host")}
    assert found["Command line"] == (
        "printf %s 'it'\"'\"'s $HOME' | tunesmith chat ft:x \\\n  --against base \\\n"
        "  --max-tokens 256 \\\n  --temperature 0.7"
    )
    assert found["curl"].count("http://host/v1/chat/completions") == 2
    compile(found["Python"], "same", "exec")
    texts |= {"model3": "third"}
    assert "Command line" not in {item.name for item in same_as.forms(texts, "http://host")}
