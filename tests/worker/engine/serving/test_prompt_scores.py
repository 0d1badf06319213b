"""Log-probs of prompts are those of plain transformers and PEFT, in parts and beside others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tunesmith_worker.engine.serving.protocol import (
    Generation,
    Output,
    ServingEngine,
    Stream,
    TokenScores,
)
from tunesmith_worker.engine.serving.stock import StockServing

from .engines import (
    Client,
    Reference,
    cpu_base,
    greedy,
    native,
    prompts_of,
    save_adapters,
    save_base,
)

Open = Callable[[Path], AbstractContextManager[ServingEngine]]


@contextmanager
def stock(folder: Path) -> Any:
    engine = StockServing(cpu_base(folder))
    try:
        yield engine
    finally:
        engine.close()


class Scored(Client):
    """Client that also collects the scores of prompts."""

    def __init__(self, engine: ServingEngine) -> None:
        super().__init__(engine)
        self.prompts: dict[int, list[tuple[TokenScores, ...]]] = {}

    def _deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self.prompts.setdefault(id(output.stream), []).append(output.prompt_scores)
        super()._deliver(outputs)


def check(reference: Reference, request: Generation, found: Sequence[TokenScores]) -> None:
    ids = torch.tensor([request.prompt_ids])
    log_probs = reference.logits(ids, request.adapter).log_softmax(-1)
    expected = log_probs[:-1].gather(1, ids[0, 1:, None])[:, 0]
    assert [one.sampled.token_id for one in found] == ids[0, 1:].tolist()
    scores = torch.tensor([one.sampled.logprob for one in found])
    assert scores.shape == expected.shape
    if len(found):
        assert float((scores - expected).abs().max()) <= 1e-4
        assert [one.top[0].token_id for one in found] == log_probs[:-1].argmax(-1).tolist()


@pytest.mark.parametrize(("family", "opened"), [("llama", native), ("gpt2", stock)])
def test_scores_of_prompts_equal_a_plain_forward_pass(
    tmp_path: Path, family: str, opened: Open
) -> None:
    """Prompts of 1 to 700 tokens, which the native engine computes in several parts, for an adapter
    and the base model, beside requests that want no scores. The first prompt is sent twice: the
    kept keys and values of the first time give no scores."""
    config = None
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_embd=48, n_layer=2, n_head=4, n_positions=1024, bos_token_id=0, eos_token_id=2
        )
    folder = save_base(tmp_path / "base", "llama" if config is None else "", config)
    settings = {} if config is None else {"fan_in_fan_out": True}
    adapters = save_adapters(folder, tmp_path, 1, **settings)
    prompts = [*prompts_of(6), tuple(range(5, 300)) + tuple(range(5, 110))]
    wanted = [
        greedy(prompt, [None, adapters[0]][i % 2], 2, top_logprobs=1, prompt_logprobs=True)
        for i, prompt in enumerate([*prompts, prompts[0], prompts[1]])
    ]
    with opened(folder) as engine:
        engine.add_adapter(adapters[0], adapters[0])
        client = Scored(engine)
        others = client.send([greedy(prompt, new=20) for prompt in prompts[:3]])
        streams: list[Stream] = client.send(wanted)
        results = client.wait(streams)
        client.wait(others)
        again = client.send(wanted[6:7])
        client.wait(again)
    reference = Reference(folder, adapters)
    for request, stream, result in zip(wanted, streams, results, strict=True):
        first, *later = client.prompts[id(stream)]
        check(reference, request, first)
        assert all(scores == () for scores in later)
        reference.check(request, result)
    check(reference, wanted[6], client.prompts[id(again[0])][0])
    assert all(client.prompts[id(stream)][0] == () for stream in others)
