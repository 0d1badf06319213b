"""Rows join and leave a running batch; prefixes are used again; memory is freed and bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tunesmith_worker.engine.serving.cache import SlotCache
from tunesmith_worker.engine.serving.prefixes import PrefixStore
from tunesmith_worker.engine.serving.protocol import (
    DoesNotFit,
    Figures,
    Finish,
    QueueFull,
    ServingEngine,
    ServingError,
    UnusableOutput,
)
from tunesmith_worker.engine.serving.scheduler import Scheduler

from .engines import Client, Reference, greedy, native, prompts_of, save_adapters, save_base


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("serving") / "base")


def wait_for(engine: ServingEngine, done: Callable[[Figures], bool]) -> Figures:
    deadline = time.monotonic() + 30
    while not done(figures := engine.figures()):
        assert time.monotonic() < deadline, figures
        time.sleep(0.005)
    return figures


def test_a_request_does_not_depend_on_the_batch(folder: Path) -> None:
    """Late requests join a running batch, and early ones leave it."""
    reference = Reference(folder)
    with native(folder, max_rows=5) as engine:
        client = Client(engine)
        requests, streams = [], []
        for number, prompt in enumerate(prompts_of(20)):
            requests.append(greedy(prompt, new=5 + 3 * (number % 7)))
            streams += client.send(requests[-1:])
            if number % 4 == 0:
                client.wait(streams[-1:], tokens=2)
        for request, result in zip(requests, client.wait(streams), strict=True):
            reference.check(request, result)


def test_a_long_prompt_is_computed_in_parts_beside_other_rows(folder: Path) -> None:
    reference = Reference(folder)
    with native(folder) as engine:
        client = Client(engine)
        short = greedy(prompts_of(3)[2], new=300)
        (running,) = client.send([short])
        client.wait([running], tokens=3)
        long = greedy([5 + i % 300 for i in range(200)])
        before = len(client.of(running).token_ids)
        (result,) = client.run(long)
        during = len(client.of(running).token_ids) - before
        reference.check(long, result)
        assert during > 200 / 64, "the short request waited for the long prompt"
        reference.check(short, client.wait([running])[0])


def test_the_next_turn_of_a_conversation_computes_only_its_new_tokens(folder: Path) -> None:
    (adapter,) = save_adapters(folder, folder.parent, 1)
    prompt = prompts_of(9)[8]
    reference = Reference(folder, [adapter])
    with native(folder) as engine:
        engine.add_adapter(adapter, adapter)
        client = Client(engine)
        (first,) = client.run(greedy(prompt))
        next_turn = (*prompt, *first.token_ids, 17, 18, 19)
        second = greedy(next_turn)
        streams = client.send([second])
        reference.check(second, client.wait(streams)[0])
        # The last token of an answer is never computed.
        assert streams[0].cached_tokens == len(prompt) + len(first.token_ids) - 1
        other = greedy(next_turn, adapter)
        streams = client.send([other])
        reference.check(other, client.wait(streams)[0])
        assert streams[0].cached_tokens == 0, "keys of another adapter were used"
        foreign = replace(second, cache_salt="another project")
        streams = client.send([foreign])
        reference.check(foreign, client.wait(streams)[0])
        assert streams[0].cached_tokens == 0, "keys of another project were used"


def test_running_rows_of_different_projects_share_no_prefix(folder: Path) -> None:
    prompt = prompts_of(9)[8]
    with native(folder) as engine:
        client = Client(engine)
        running = client.send([greedy(prompt, new=5000)])
        client.wait(running, tokens=2)
        own, foreign = greedy(prompt), greedy(prompt, cache_salt="another project")
        streams = client.send([own, foreign])
        client.wait(streams)
        assert [stream.cached_tokens for stream in streams] == [len(prompt) - 1, 0]


def test_choices_of_one_prompt_compute_it_once(folder: Path) -> None:
    prompt = prompts_of(9)[8]
    with native(folder) as engine:
        results = Client(engine).run(*(greedy(prompt) for _ in range(6)))
        assert len({tuple(one.token_ids) for one in results}) == 1
        figures = engine.figures()
        assert figures.reused_tokens == 5 * (len(prompt) - 1)


def test_a_cancelled_request_frees_its_memory_at_once(folder: Path) -> None:
    with native(folder, max_rows=4) as engine:
        client = Client(engine)
        streams = client.send([greedy(prompt, new=5000) for prompt in prompts_of(6)])
        client.wait(streams[:4], tokens=5)
        busy = wait_for(engine, lambda figures: figures.running == 4 and figures.queued == 2)
        assert busy.live_tokens > 4 * 5
        assert busy.cache_bytes > 0
        engine.cancel(streams)
        free = wait_for(engine, lambda figures: figures.cancelled == 6)
        assert (free.running, free.queued) == (0, 0)
        assert (free.live_tokens, free.kept_tokens, free.cache_bytes) == (0, 0, 0)
        tokens = [len(client.of(stream).token_ids) for stream in streams]
        time.sleep(0.05)
        assert [len(client.of(stream).token_ids) for stream in streams] == tokens


def record_growth(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each growth of the caches within a step adds their bytes."""
    seen: list[int] = []

    def recorded(grow: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:  # Any: the method's own
            grow(*args)
            seen.append(scheduler._live_bytes() + scheduler._kept.bytes)

        return call

    for owner, name in ((SlotCache, "append"), (SlotCache, "advance"), (PrefixStore, "add")):
        monkeypatch.setattr(owner, name, recorded(getattr(owner, name)))
    return seen


def test_memory_stays_within_the_budget_and_kept_prefixes_go_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that do not fit together wait, or return to the queue and are computed again."""
    token = 3 * 2 * 2 * 12 * 4  # bytes of one token's keys and values
    budget = 8 * 64 * token
    reference = Reference(folder)
    requests = [greedy(prompt, new=50) for prompt in prompts_of(16, longest=40)]
    with native(folder, cache_bytes=budget) as engine:
        inside = record_growth(engine._scheduler, monkeypatch)
        client = Client(engine)
        streams = client.send(requests)
        most = 0
        while any(client.of(stream).finish is None for stream in streams):
            most = max(most, engine.figures().cache_bytes)
            time.sleep(0.001)
        for request, result in zip(requests, client.wait(streams), strict=True):
            reference.check(request, result)
        assert 0 < most <= budget
        assert 0 < max(inside) <= budget
        assert engine.figures().kept_tokens > 0


def test_a_request_larger_than_the_budget_fails_alone(folder: Path) -> None:
    with native(folder, cache_bytes=64 * 2 * 576) as engine:
        client = Client(engine)
        (result,) = client.run(greedy(range(5, 205)))
        assert isinstance(result.error, DoesNotFit)
        (result,) = client.run(greedy(prompts_of(3)[2], new=300))
        assert isinstance(result.error, DoesNotFit)
        assert client.run(greedy(prompts_of(3)[2]))[0].finish is Finish.LENGTH


def test_a_full_queue_refuses(folder: Path) -> None:
    with native(folder, max_rows=1, max_queue=2) as engine:
        client = Client(engine)
        first = client.send([greedy(prompts_of(1)[0], new=5000)])
        client.wait(first, tokens=1)
        rest = client.send([greedy(prompts_of(1)[0], new=1) for _ in range(2)])
        wait_for(engine, lambda figures: figures.queued == 2)
        with pytest.raises(QueueFull) as refused:
            client.send([greedy(prompts_of(1)[0])])
        assert refused.value.retry_after > 0
        engine.cancel(first)
        client.wait(rest)


def test_closing_ends_running_requests_with_an_error(folder: Path) -> None:
    with native(folder) as engine:
        client = Client(engine)
        streams = client.send([greedy(prompts_of(1)[0], new=5000)])
        client.wait(streams, tokens=1)
    assert isinstance(client.of(streams[0]).error, ServingError)
    with pytest.raises(ServingError):
        client.send([greedy(prompts_of(1)[0])])


def test_a_diverged_adapter_fails_its_own_requests_only(folder: Path) -> None:
    """Its weights are finite, but its logits are not. An adapter with NaN is not loaded."""
    diverged, damaged = save_adapters(folder, folder.parent / "diverged", 2)
    fill(diverged, 1e30)
    fill(damaged, torch.nan)
    reference = Reference(folder)
    with native(folder) as engine:
        with pytest.raises(ServingError):
            engine.add_adapter(damaged, damaged)
        engine.add_adapter(diverged, diverged)
        client = Client(engine)
        good = [greedy(prompt, new=30) for prompt in prompts_of(6)]
        streams = client.send(good)
        client.wait(streams, tokens=3)
        (bad,) = client.run(greedy(prompts_of(9)[8], diverged))
        assert isinstance(bad.error, UnusableOutput)
        for request, result in zip(good, client.wait(streams), strict=True):
            reference.check(request, result)


def test_a_row_that_diverged_leaves_no_nan_in_its_slot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next row of the slot is shorter than the longest row, so it reads unused entries."""
    long, short = greedy(prompts_of(9)[8], new=5000), greedy((7, 8, 9))
    with native(folder, max_rows=2) as engine:
        decoder = engine._scheduler._decoder
        run, damaged = decoder.run, list[int]()

        def damage(rows: Any, cache: SlotCache, parts: Any) -> torch.Tensor:
            if cache.rows == 2 and not damaged:
                cache._kv[:, :, 1] = torch.nan
                damaged.append(cache.lengths[1])
            return run(rows, cache, parts)

        monkeypatch.setattr(decoder, "run", damage)
        client = Client(engine)
        client.wait(client.send([long]), tokens=1)
        bad, after = client.wait(client.send([long, short]))
        assert isinstance(bad.error, UnusableOutput)
        Reference(folder).check(short, after)


def fill(adapter: str, value: float) -> None:
    path = f"{adapter}/adapter_model.safetensors"
    save_file({name: torch.full_like(t, value) for name, t in load_file(path).items()}, path)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_rope_frequencies_that_change_with_the_length(tmp_path: Path, kind: str) -> None:
    """Cached keys are computed again when the frequencies change."""
    common = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    if kind == "dynamic":
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
        heads["max_position_embeddings"] = 40
        config = transformers.LlamaConfig(**common, **heads, rope_parameters=rope)
    else:
        rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 6}
        rope |= {"long_factor": [3.0] * 6, "original_max_position_embeddings": 40}
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        config = transformers.Phi3Config(
            **common, **heads, **ids, rope_parameters=rope, original_max_position_embeddings=40
        )
    base = save_base(tmp_path / "base", config=config)
    prompts = [prompts_of(6)[5], tuple(range(5, 35)), tuple(range(9, 44))]
    requests = [greedy(prompt, new=20) for prompt in prompts]
    with native(base) as engine:
        results = Client(engine).run(*requests)
    model = Reference(base)
    for request, result in zip(requests, results, strict=True):
        for length in range(len(result.token_ids)):
            known = torch.tensor([[*request.prompt_ids, *result.token_ids[:length]]])
            logits = model.logits(known, None)[-1]
            assert int(logits.argmax()) == result.token_ids[length]
            error = logits.log_softmax(-1)[result.token_ids[length]] - result.logprobs[length]
            assert abs(float(error)) <= 1e-4


def test_an_engine_leaves_autograd_as_it_was(tmp_path: Path) -> None:
    with native(save_base(tmp_path / "base")):
        assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()
