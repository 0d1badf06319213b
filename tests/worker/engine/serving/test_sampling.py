"""Parameters of a request: seeds, temperatures, penalties, stop texts, log-probs, JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.tiny_model import make_tiny_tokenizer
from tunesmith_worker.engine.rollout import SamplingParams
from tunesmith_worker.engine.serving.grammar import Matcher
from tunesmith_worker.engine.serving.protocol import (
    Finish,
    Generation,
    UnusableGrammar,
    UnusableOutput,
)
from tunesmith_worker.engine.serving.stock import StockServing
from tunesmith_worker.engine.serving.text import TextStream

from .engines import Client, Reference, cpu_base, greedy, native, prompts_of, save_base

PROMPT = prompts_of(6)[5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("serving") / "base")


def sampled(seed: int, new: int = 8, **sampling: float) -> Generation:
    return greedy(PROMPT, new=new, seed=seed, sampling=SamplingParams(**sampling))  # type: ignore[arg-type]  # floats only


def test_a_seed_gives_the_same_answer_in_any_batch_and_engine(folder: Path) -> None:
    requests = [sampled(seed, temperature=1.5, top_p=0.9) for seed in range(6)]
    with native(folder) as engine:
        client = Client(engine)
        together = [one.token_ids for one in client.run(*requests, *requests)]
        alone = [client.run(request)[0].token_ids for request in requests]
    assert together == alone * 2
    assert len(set(map(tuple, alone))) > 1
    stock = StockServing(cpu_base(folder))
    assert [one.token_ids for one in Client(stock).run(*requests)] == alone
    stock.close()


def test_tokens_follow_the_models_distribution(folder: Path) -> None:
    logits = Reference(folder).logits(torch.tensor([PROMPT]), None)[-1] / 2.0
    expected = logits.softmax(-1)
    with native(folder) as engine:
        requests = [sampled(seed, new=1, temperature=2.0) for seed in range(600)]
        results = [*Client(engine).run(*requests[:250]), *Client(engine).run(*requests[250:500])]
    counts = Counter(one.token_ids[0] for one in results)
    likely = int(expected.argmax())
    p = float(expected[likely])
    assert abs(counts[likely] / 500 - p) < 4 * (p * (1 - p) / 500) ** 0.5
    least = float(expected[list(counts)].min())
    assert least > 1e-6


def test_penalties_change_only_their_own_row(folder: Path) -> None:
    with native(folder) as engine:
        client = Client(engine)
        plain = greedy(PROMPT, new=30)
        (before,) = client.run(plain)
        punished = greedy(
            PROMPT, new=30, sampling=SamplingParams(temperature=0.0, frequency_penalty=2.0)
        )
        after, beside = client.run(punished, plain)
    assert beside.token_ids == before.token_ids
    most = max(Counter(before.token_ids).values())
    assert max(Counter(after.token_ids).values()) <= most
    assert after.token_ids != before.token_ids


def test_a_stop_text_ends_the_answer_before_itself(folder: Path) -> None:
    with native(folder) as engine:
        client = Client(engine)
        (whole,) = client.run(greedy(PROMPT, new=30))
        middle = len(whole.text) // 2
        stop = whole.text[middle : middle + 5]
        (cut,) = client.run(greedy(PROMPT, new=30, stop=("never seen", stop)))
    assert cut.text == whole.text[: whole.text.find(stop)]
    assert cut.finish is Finish.STOP


def test_a_stop_token_has_no_text(folder: Path) -> None:
    with native(folder) as engine:
        client = Client(engine)
        (whole,) = client.run(greedy(PROMPT, new=30))
        token = whole.token_ids[4]
        first = whole.token_ids.index(token)
        (cut,) = client.run(greedy(PROMPT, new=30, stop_token_ids=frozenset({token})))
    assert cut.token_ids == whole.token_ids[: first + 1]
    assert cut.finish is Finish.STOP
    expected = cpu_base(folder).tokenizer.decode(whole.token_ids[:first])
    assert cut.text == expected


def test_top_logprobs_are_the_models(folder: Path) -> None:
    with native(folder) as engine:
        request = greedy(PROMPT, new=3, top_logprobs=4)
        (result,) = Client(engine).run(request)
    ids = torch.tensor([[*PROMPT, *result.token_ids]])
    expected = Reference(folder).logits(ids, None)[len(PROMPT) - 1 : -1].log_softmax(-1).topk(4)
    for one, values, tokens in zip(result.scores, *expected, strict=True):
        assert [top.token_id for top in one.top] == tokens.tolist()
        assert [top.logprob for top in one.top] == pytest.approx(values.tolist(), abs=1e-4)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


def test_answers_satisfy_the_json_schema(folder: Path) -> None:
    pytest.importorskip("llguidance")
    base = cpu_base(folder)
    settings: dict[str, Any] = {"json_schema": json.dumps(SCHEMA), "stop_token_ids": base.eos_ids}
    requests = [
        greedy(PROMPT, new=60, seed=seed, sampling=SamplingParams(temperature=1.0), **settings)
        for seed in range(4)
    ]
    with native(folder) as engine:
        results = Client(engine).run(*requests, greedy(PROMPT))
        with pytest.raises(UnusableGrammar):
            Client(engine).send([greedy(PROMPT, json_schema='{"type": "nonsense"}')])
    stock = StockServing(base)
    results[4:] = Client(stock).run(requests[0])
    stock.close()
    for result in results:
        answer = json.loads(result.text)
        assert answer["name"] in ("Ann", "Bob")
        assert isinstance(answer["ok"], bool)
        assert result.finish is Finish.STOP


def backend() -> Tokenizer:
    tokenizer: Tokenizer = make_tiny_tokenizer().backend_tokenizer
    return tokenizer


def test_text_is_sent_in_whole_characters() -> None:
    tokenizer = backend()
    text = "Grüße, 世界 🙂 ok"
    stream = TextStream(tokenizer, ())
    pieces = [stream.add(token) for token in tokenizer.encode(text).ids]
    assert "".join(pieces) + stream.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_text_are_sent_at_the_end() -> None:
    tokenizer = backend()
    half = tokenizer.encode("🙂").ids[:-1]
    stream = TextStream(tokenizer, ())
    sent = "".join(stream.add(token) for token in half)
    assert sent + stream.finish() == tokenizer.decode(half)


@pytest.mark.parametrize(
    ("stops", "expected"),
    [(("lo wo",), "hel"), (("world!",), "hello world"), (("rld", "wo"), "hello "), (("h",), "")],
)
def test_no_part_of_a_stop_text_is_sent(stops: tuple[str, ...], expected: str) -> None:
    tokenizer = backend()
    stream, sent = TextStream(tokenizer, stops), ""
    for token in tokenizer.encode("hello world").ids:
        sent += stream.add(token)
        assert expected.startswith(sent)
        if stream.stopped:
            break
    assert sent + stream.finish() == expected


def test_a_grammar_that_fails_ends_its_own_request_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An illegal token puts llguidance into its error state."""
    pytest.importorskip("llguidance")
    mask = Matcher.mask

    def without_effect(self: Matcher, size: int, device: torch.device) -> torch.Tensor:
        return torch.zeros_like(mask(self, size, device))

    monkeypatch.setattr(Matcher, "mask", without_effect)
    with native(folder) as engine:
        client = Client(engine)
        bad, good = client.run(greedy(PROMPT, json_schema='{"type": "object"}'), greedy(PROMPT))
        assert isinstance(bad.error, UnusableOutput)
        assert "JSON" in str(bad.error)
        assert good.error is None
        assert good.finish is not None

        def broken(self: Matcher, size: int, device: torch.device) -> torch.Tensor:
            raise RuntimeError("planted")

        monkeypatch.setattr(Matcher, "mask", broken)
        bad, good = client.run(greedy(PROMPT, json_schema='{"type": "object"}'), greedy(PROMPT))
        assert isinstance(bad.error, RuntimeError)
        assert good.error is None
