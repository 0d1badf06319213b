"""Models, adapters and engines for the serving tests, and the plain forward they are compared
with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peft
import torch

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.engine.patches.models import FAMILIES, model_of
from tunesmith_worker.engine.rollout import SamplingParams
from tunesmith_worker.engine.serving.base import BaseModel, load
from tunesmith_worker.engine.serving.native import NativeServing
from tunesmith_worker.engine.serving.protocol import (
    Finish,
    Generation,
    Output,
    ServingEngine,
    Stream,
    TokenScores,
)

Untyped = Any  # Any: transformers and peft are not typed

GREEDY = SamplingParams(temperature=0.0)
CACHE_BYTES = 1 << 28


@dataclass
class Result:
    """Everything that an engine delivered for one request."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScores] = field(default_factory=list)
    finish: Finish | None = None
    error: Exception | None = None

    @property
    def logprobs(self) -> list[float]:
        return [one.sampled.logprob for one in self.scores]


class Client:
    """Sends requests to an engine and collects their outputs."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self.results: dict[int, Result] = {}
        self._streams: list[Stream] = []

    def send(self, requests: Sequence[Generation]) -> list[Stream]:
        streams = [Stream(request, self._deliver) for request in requests]
        self._streams += streams
        self.results |= {id(stream): Result() for stream in streams}
        self._engine.submit(streams)
        return streams

    def _deliver(self, outputs: Sequence[Output]) -> None:
        with self._changed:
            for output in outputs:
                result = self.results[id(output.stream)]
                assert result.finish is None, "an output after the last one"
                result.text += output.text
                result.token_ids += output.token_ids
                result.scores += output.scores
                result.finish, result.error = output.finish, output.error
            self._changed.notify_all()

    def of(self, stream: Stream) -> Result:
        return self.results[id(stream)]

    def wait(self, streams: Sequence[Stream], tokens: int | None = None) -> list[Result]:
        """Wait until the requests end, or until each has `tokens` tokens."""

        def done() -> bool:
            results = [self.of(stream) for stream in streams]
            return all(
                one.error is not None
                or one.finish is not None
                or (tokens is not None and len(one.token_ids) >= tokens)
                for one in results
            )

        with self._changed:
            assert self._changed.wait_for(done, timeout=60)
            return [self.of(stream) for stream in streams]

    def run(self, *requests: Generation) -> list[Result]:
        return self.wait(self.send(requests))


def save_base(folder: Path, family: str = "llama", config: Untyped = None) -> Path:
    """Save a small random model with the tiny tokenizer."""
    tokenizer = make_tiny_tokenizer()
    config = config or FAMILIES[family]()
    config.vocab_size = len(tokenizer)
    model_of(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_adapters(base: Path, folder: Path, count: int, **settings: Untyped) -> list[str]:
    """Save adapters of different ranks with random weights; return their folders."""
    folders, plain = [], cpu_base(base).model
    for number in range(count):
        given = {"r": 2 + number % 3, "target_modules": _targets(plain), **settings}
        config = peft.LoraConfig(task_type="CAUSAL_LM", lora_alpha=5 + number, **given)
        with torch.random.fork_rng():
            torch.manual_seed(number)
            model = peft.get_peft_model(plain, config)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.copy_(torch.randn_like(parameter) * 0.2)
        folders.append(str(folder / f"adapter-{number}"))
        model.save_pretrained(folders[-1])
        plain = model.unload()
    return folders


def _targets(model: Untyped) -> list[str]:
    wanted = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "qkv_proj", "c_attn")
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    return [name for name in (*wanted, "in_proj", "gate_up_proj") if name in names]


def cpu_base(folder: Path) -> BaseModel:
    return load(folder.name, str(folder), torch.device("cpu"))


@contextmanager
def native(folder: Path, **settings: Untyped) -> Iterator[NativeServing]:
    engine = NativeServing(cpu_base(folder), **{"cache_bytes": CACHE_BYTES, **settings})
    try:
        yield engine
    finally:
        engine.close()


def prompts_of(count: int, longest: int = 60) -> list[tuple[int, ...]]:
    """Make prompts of unequal length."""
    draw = torch.Generator().manual_seed(0)
    lengths = [1 + (i * 7) % longest for i in range(count)]
    return [tuple(torch.randint(5, 300, (n,), generator=draw).tolist()) for n in lengths]


def greedy(
    prompt: Sequence[int], adapter: str | None = None, new: int = 12, **settings: Untyped
) -> Generation:
    return Generation(
        **{
            "prompt_ids": tuple(prompt),
            "max_tokens": new,
            "seed": 0,
            "sampling": GREEDY,
            "adapter": adapter,
            "top_logprobs": 0,
            **settings,
        }
    )


class Reference:
    """Plain transformers and PEFT in fp32."""

    def __init__(self, folder: Path, adapters: Sequence[str] = ()) -> None:
        self.model = cpu_base(folder).model
        self._names: dict[str, str] = {}
        for number, adapter in enumerate(adapters):
            name = f"a{number}"
            if isinstance(self.model, peft.PeftModel):
                self.model.load_adapter(adapter, name)
            else:
                self.model = peft.PeftModel.from_pretrained(self.model, adapter, name)
            self._names[adapter] = name
        self.model.eval()

    def check(self, request: Generation, result: Result, limit: float = 1e-4) -> None:
        """Check that greedy tokens and their log-probs are those of a forward pass over the whole
        sequence."""
        assert result.error is None
        assert result.token_ids
        prompt = request.prompt_ids
        ids = torch.tensor([[*prompt, *result.token_ids]])
        logits = self.logits(ids, request.adapter)[len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == result.token_ids
        expected = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        error = (torch.tensor(result.logprobs) - expected).abs().max()
        assert float(error) <= limit

    def logits(self, ids: torch.Tensor, adapter: str | None) -> torch.Tensor:
        with torch.no_grad():
            if adapter is not None:
                self.model.set_adapter(self._names[adapter])
                return self._forward(ids)
            if isinstance(self.model, peft.PeftModel):
                with self.model.disable_adapter():
                    return self._forward(ids)
            return self._forward(ids)

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits[0]
        return logits.float()
