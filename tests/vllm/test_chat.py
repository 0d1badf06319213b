"""Chat with a real vLLM that `tunesmith serve` starts: models trained here, 8 at a time.

Runs in the environment of the service. TUNESMITH_TEST_VLLM_PYTHON names an interpreter with vLLM.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import tunesmith
from tests.end_to_end.service import Service, alive, until, write_rows
from tests.tiny_model import make_tiny_model

from .serving import CPU, START_SECONDS

Untyped = Any  # Any: transformers is not typed
Answer = tuple[str, float]
"""Text of an answer, and the log-prob of its first token."""

PYTHON = os.environ.get("TUNESMITH_TEST_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="no interpreter with vLLM: run make test-vllm"),
]
BASE = "tiny"
ADAPTERS = ("--max-lora-rank", "8", "--max-loras", "4")
SERVER, ENGINE = "vllm.entrypoints", "VLLM::EngineCore"
"""Parts of the command lines of vLLM's processes."""
TOKENS = 12
QUESTIONS = ("How much is 3 plus two?", "What is the capital of France?", "How much is 40?")
SEED = 1
"""With other seeds, two checkpoints may give equal answers."""
RECIPE = {
    "max_steps": 24,
    "save_steps": 3,
    "learning_rate": 0.02,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 2,
    "lora": {"r": 4},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("chat")
    _make_base(folder / "models" / BASE)
    running = Service(
        folder / "service" / "data",
        folder / "models",
        TUNESMITH_TRAINER_PYTHON=PYTHON,
        TUNESMITH_WARM_TRAINER="false",
        TUNESMITH_INFERENCE_VLLM_MODEL=BASE,
        TUNESMITH_INFERENCE_VLLM_OPTIONS=" ".join((*CPU, *ADAPTERS)),
    )
    running.start(180)
    until(lambda: _engine(running) == "vllm", START_SECONDS)
    yield running
    running.close()


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[tunesmith.Client]:
    with service.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def job(client: tunesmith.Client, tmp_path_factory: pytest.TempPathFactory) -> Untyped:
    rows = write_rows(tmp_path_factory.mktemp("rows") / "train.jsonl")
    created = client.fine_tuning.jobs.create(
        model=BASE, training_file=str(rows), recipe=RECIPE, seed=SEED
    )
    return created.wait(timeout=300)


def test_tuned_models_answer_with_the_trainers_greedy_text(
    service: Service, client: tunesmith.Client, job: Untyped, tmp_path: Path
) -> None:
    """The last model and 7 checkpoints, interleaved: each gives its own text and log-prob."""
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id))
    adapters = {c.fine_tuned_model_checkpoint: str(c.adapter_id) for c in checkpoints[-7:]}
    adapters[job.fine_tuned_model] = job.id
    assert len(adapters) == 8
    expected = {
        (name, question): answer
        for name, adapter_id in adapters.items()
        for question, answer in _greedy_answers(
            client.adapters.download(adapter_id, tmp_path / adapter_id), tmp_path
        )
    }
    different = {(text, round(log_prob, 3)) for text, log_prob in expected.values()}
    assert len(different) == len(expected), "each model must answer differently"
    assert len({text for text, _ in expected.values()}) > len(expected) / 2
    interleaved = [(name, question) for question in QUESTIONS for name in adapters]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda pair: _ask(client, *pair), interleaved))
    for pair, (text, log_prob) in zip(interleaved, answers, strict=True):
        # transformers writes a character that is cut at the end as U+FFFD; vLLM leaves it out.
        assert text.rstrip("\ufffd") == expected[pair][0].rstrip("\ufffd"), pair
        assert log_prob == pytest.approx(expected[pair][1], abs=1e-4), pair

    assert {_engine(service, name) for name in adapters} == {"vllm"}


def test_the_base_model_answers_without_an_adapter(client: tunesmith.Client, job: Untyped) -> None:
    assert _ask(client, BASE, QUESTIONS[0]) != _ask(client, job.fine_tuned_model, QUESTIONS[0])


def test_vllm_is_killed_and_then_serve(service: Service, client: tunesmith.Client) -> None:
    """The last test, because it ends the service of the others."""
    asked = _ask(client, BASE, QUESTIONS[0])
    [first] = service.processes(ENGINE)
    os.kill(service.processes(SERVER)[0], signal.SIGKILL)
    until(lambda: not alive(first))
    assert _engine(service) == "native"
    assert _ask(client, BASE, QUESTIONS[0])[0] == asked[0]
    until(lambda: _engine(service) == "vllm", START_SECONDS)
    assert _ask(client, BASE, QUESTIONS[0])[0] == asked[0]
    vllm = [*service.processes(SERVER), *service.processes(ENGINE)]
    os.kill(service.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, vllm)))


def _engine(service: Service, model: str = BASE) -> str:
    """Return the engine that answers."""
    reply = httpx.post(
        f"{service.url}/completions",
        json={"model": model, "prompt": "a", "max_tokens": 1},
        headers={"authorization": f"Bearer {service.api_key}"},
        timeout=60.0,
    )
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-tunesmith-engine"])


def _ask(client: tunesmith.Client, model: str, question: str) -> Answer:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=TOKENS,
        logprobs=True,
    )
    [choice] = answer.choices
    assert choice.logprobs
    assert choice.logprobs.content
    return choice.message.content or "", choice.logprobs.content[0].logprob


def _greedy_answers(adapter: Path, tmp_path: Path) -> Iterator[tuple[str, Answer]]:
    """Yield each question with the answer of transformers and PEFT in fp32."""
    import json

    import peft
    import torch
    import transformers

    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    folder = _folder(base, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tuned = peft.PeftModel.from_pretrained(model, adapter).float().eval()
    for question in QUESTIONS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.no_grad():
            first = tuned(**ids).logits[0, -1].log_softmax(-1).max()
            out = tuned.generate(**ids, max_new_tokens=TOKENS, do_sample=False)
        new = out[0, ids["input_ids"].shape[1] :]
        yield question, (tokenizer.decode(new, skip_special_tokens=True), float(first))


def _folder(base: str, tmp_path: Path) -> Path:
    """Make the base model again: it is the same in every process."""
    folder = tmp_path / "base" / base
    if not folder.exists():
        _make_base(folder)
    return folder


def _make_base(folder: Path) -> None:
    """Make a model whose large weights let adapters change its text within a few steps."""
    import torch
    import transformers

    make_tiny_model(folder, hidden_size=128)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8.0)
    model.save_pretrained(folder)
