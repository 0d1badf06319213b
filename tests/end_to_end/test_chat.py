"""Chat with base, tuned model and checkpoint through `tunesmith serve`."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

import tunesmith

from .service import QUICK, SHORT, Service, alive, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
INFERENCE = "tunesmith_worker.inference"
QUESTION: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "How much is 3?"}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("chat")
    for name in ("tiny", "other"):
        shutil.copytree(model_dir / "tiny", folder / "models" / name)
    env = QUICK | {"TUNESMITH_WARM_TRAINER": "false"}
    service = Service(folder / "data", folder / "models", **env)
    service.start()
    yield service
    service.close()


@pytest.fixture(scope="module")
def strict(running: Service) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=running.url, api_key=running.api_key, max_retries=0, timeout=200,
        _strict_response_validation=True,
    ) as client:  # fmt: skip
        yield client


@pytest.fixture(scope="module")
def lengths() -> list[int]:
    """Number of chunks of each answer during the job's training."""
    return []


@pytest.fixture(scope="module")
def job(running: Service, strict: OpenAI, rows: Path, lengths: list[int]) -> tunesmith.Job:
    """A job that was trained while users chatted with the model `tiny`."""
    assert running.processes(INFERENCE) == [], "nobody has asked for it"
    for name in ("tiny", "other"):
        assert strict.completions.create(model=name, prompt="a", max_tokens=1).choices
    end = threading.Event()
    patient = strict.with_options(max_retries=2)  # while the job takes memory

    def chat(most: int) -> None:
        while not end.is_set():
            chunks = patient.chat.completions.create(
                model="tiny", messages=QUESTION, max_tokens=most, n=4, stream=True
            )
            lengths.append(sum(1 for _ in chunks))

    # Answers of different lengths: those of one length end together, and the model is idle.
    chatting = [threading.Thread(target=chat, args=[most]) for most in (200, 150, 110)]
    for thread in chatting:
        thread.start()
    jobs = running.client().fine_tuning.jobs
    recipe = SHORT | {"learning_rate": 0.01, "save_steps": 6}
    made = jobs.create(model="tiny", training_file=str(rows), recipe=recipe)
    try:
        return jobs.wait(made.id, timeout=100)
    finally:
        end.set()
        for thread in chatting:
            thread.join(60)


def test_a_job_beside_a_busy_chat_gets_memory_and_streams_go_on(
    running: Service, job: tunesmith.Job, lengths: list[int]
) -> None:
    """The job unloads the model that nobody uses; the streams of the other model end whole."""
    assert job.status == "succeeded"
    assert min(lengths) > 8
    log = (running.data_dir / "logs" / "inference.log").read_text()
    assert "unloaded other: a training job asks for memory" in log
    assert "unloaded tiny: a training job" not in log


def test_a_trained_model_answers(running: Service, strict: OpenAI, job: tunesmith.Job) -> None:
    """Must run last, because it stops the service."""
    assert job.fine_tuned_model
    [checkpoint, *_] = running.client().fine_tuning.jobs.checkpoints.list(job.id)
    names = ["tiny", job.fine_tuned_model, checkpoint.fine_tuned_model_checkpoint]
    answers = {}
    for name in names:
        answer = strict.chat.completions.create(
            model=name, messages=QUESTION, temperature=0, max_completion_tokens=12,
            logprobs=True, top_logprobs=2,
        )  # fmt: skip
        assert answer.model == name
        assert answer.usage
        assert answer.usage.completion_tokens <= 12
        logprobs = answer.choices[0].logprobs
        assert logprobs
        assert logprobs.content
        answers[name] = [token.logprob for token in logprobs.content]
        chunks = strict.chat.completions.create(
            model=name, messages=QUESTION, temperature=0, max_completion_tokens=12, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        parts = list(chunks)
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text == answer.choices[0].message.content
        assert parts[-1].usage
    assert answers["tiny"] != answers[job.fine_tuned_model], "the adapter changes the answer"

    [process] = running.processes(INFERENCE)
    streams = [
        strict.chat.completions.create(
            model=name, messages=QUESTION, n=32, stream=True, temperature=2
        )
        for name in ("tiny", "tiny", job.fine_tuned_model)
    ]
    for stream in streams:
        next(stream)
    os.kill(process, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(openai.APIError, match="ended before the answer was complete") as broken:
            list(stream)
        assert broken.value.code == "unavailable"
    again = strict.chat.completions.create(
        model=job.fine_tuned_model, messages=QUESTION, temperature=0, max_completion_tokens=2
    )
    assert again.choices[0].message.content is not None
    [second] = running.processes(INFERENCE)
    os.kill(running.processes("tunesmith_server api")[0], signal.SIGKILL)
    until(lambda: not alive(second), 10)
    until(running.ready, 30)
    assert strict.completions.create(model="tiny", prompt="a", max_tokens=1).choices
    [third] = running.processes(INFERENCE)
    running.stop()
    assert not alive(third)
