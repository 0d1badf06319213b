"""The trip of one job: from a file to a tuned model, by SDK, curl and the openai client."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import openai
import pytest

import tunesmith
from tunesmith_schema import ROLLOUT, PhaseName
from tunesmith_worker.rundir.paths import file_hash

from .service import ENDLESS, SHORT, Service, until

pytestmark = pytest.mark.slow

NOT_HERE = {PhaseName.PACK, PhaseName.OTHER, *ROLLOUT}
"""Phases that a supervised run without packing does not have."""


def logits_gap(base: Path, adapter: Path) -> float:
    """Largest difference between the trainer's probe and plain transformers + PEFT."""
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    probe = load_file(adapter / "probe.safetensors")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if (adapter / "adapter_config.json").exists():
        model = PeftModel.from_pretrained(model, adapter)
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=probe["input_ids"]).logits
    return float((logits[:, -probe["logits"].shape[1] :] - probe["logits"]).abs().max())


def test_four_calls_go_from_a_file_to_an_adapter_that_is_what_was_trained(
    client: tunesmith.Client, rows: Path, model_dir: Path, tmp_path: Path
) -> None:
    file = client.files.create(file=rows)
    job = client.fine_tuning.jobs.create(
        model="tiny",
        training_file=file.id,
        validation_file=file.id,
        suffix="first",
        recipe=SHORT | {"max_steps": 40, "learning_rate": 1e-2, "save_steps": 20, "eval_steps": 20},
    )
    job.wait(timeout=120)
    folder = client.adapters.download(job.id, tmp_path / "adapter")

    assert job.fine_tuned_model == f"ft:tiny:default:first:{job.id.removeprefix('ftjob-')[:10]}"
    assert logits_gap(model_dir / "tiny", folder) <= 1e-5
    assert job.adapter_id is not None
    adapter = client.adapters.retrieve(job.adapter_id)
    assert adapter.verified is True
    assert adapter.verification_sha256 == file_hash(folder / "verification.json")
    program = ("-m", "tunesmith.cli", "adapters", "verify", folder, "--base", model_dir / "tiny")
    verified = subprocess.run([sys.executable, *program], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stderr
    assert verified.stdout.startswith("verified: the logits of the model loaded")
    losses = [p.values["train_loss"] for p in job.metrics() if "train_loss" in p.values]
    assert len(losses) == 40
    first, last = losses[0], losses[-1]
    assert first is not None
    assert last is not None
    assert last < first - 0.3  # a LoRA on random weights learns the frequencies of tokens
    assert [p.step for p in job.metrics() if "valid_loss" in p.values] == [20, 40]

    events = list(job.stream())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    phases = [e.data["phase"] for e in events if e.kind == "phase"]
    for name in ("claim", "download", "spawn", "import", "load", "data", "train", "save"):
        assert name in phases, name
    check_report(job, events)
    checkpoint = next(iter(client.fine_tuning.jobs.checkpoints.list(job.id)))
    assert checkpoint.step_number in (20, 40)
    assert checkpoint.adapter_id is not None
    assert client.adapters.retrieve(checkpoint.adapter_id).verified is None
    halfway = client.adapters.download(checkpoint.adapter_id, tmp_path / "halfway")
    assert logits_gap(model_dir / "tiny", halfway) <= 1e-5


def check_report(job: tunesmith.Job, events: list[tunesmith.Event]) -> None:
    """The phases account for the time between the events that begin and end the attempt."""
    report = job.report()
    assert (report.outcome, report.live, report.attempt, report.steps) == (
        "succeeded",
        False,
        1,
        40,
    )
    named = {name: s for name, s in report.phases.items() if name not in ("train", "other")}
    assert sum(named.values()) >= 0.97 * report.wall_seconds, report.phases
    assert {phase for phase in PhaseName if phase not in NOT_HERE} <= named.keys() | {"train"}
    claimed = next(e for e in events if e.message.startswith("claimed by"))
    succeeded = next(e for e in events if e.message.startswith("succeeded"))
    assert report.wall_seconds == pytest.approx(
        succeeded.created_at - claimed.created_at, abs=1.5
    )  # events have whole seconds
    assert report.throughput is not None
    assert report.throughput.trained_tokens == job.trained_tokens
    live = [p.values for p in job.metrics() if "step_seconds" in p.values]
    assert live
    assert live[0]["memory_rss"]


def test_a_model_made_from_scratch_is_the_base_of_the_next_job(
    client: tunesmith.Client, rows: Path, tmp_path: Path
) -> None:
    jobs = client.fine_tuning.jobs
    full: dict[str, Any] = {"tuning": "full", "from_scratch": True, "max_steps": 6}
    file = client.files.create(file=rows)
    client.files.wait_for_processing(file.id, timeout=30)
    asked = time.time()
    base = jobs.create(model="bare", training_file=file.id, recipe=full)
    first = next(event for event in base.stream() if event.kind == "metrics")
    assert first.data["step"] == 1
    assert time.time() - asked < 18, "the bar is 9 s on an idle machine"
    base.wait(timeout=120)
    assert base.fine_tuned_model is not None
    weights = client.adapters.download(base.id, tmp_path / "base")
    assert logits_gap(weights, weights) <= 1e-5

    tuned = jobs.create(model=base.fine_tuned_model, training_file=base.training_file, recipe=SHORT)
    tuned.wait(timeout=120)
    adapter = client.adapters.download(tuned.id, tmp_path / "tuned")
    assert logits_gap(weights, adapter) <= 1e-5
    with pytest.raises(tunesmith.BadRequestError, match="LoRA adapter"):
        jobs.create(model=str(tuned.fine_tuned_model), training_file=base.training_file)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_does_the_same(service: Service, rows: Path, tmp_path: Path) -> None:
    header = f"Authorization: Bearer {service.api_key}"

    def curl(*arguments: str) -> bytes:
        return subprocess.run(
            ["curl", "-sS", "--fail-with-body", "-H", header, *arguments],
            check=True,
            capture_output=True,
        ).stdout

    url = service.url
    file = json.loads(curl("-F", "purpose=fine-tune", "-F", f"file=@{rows}", f"{url}/files"))
    body = {"model": "tiny", "training_file": file["id"], "recipe": SHORT}
    made = curl(
        *("-H", "content-type: application/json"),
        *("-d", json.dumps(body), f"{url}/fine_tuning/jobs"),
    )
    job = json.loads(made)
    stream = curl("-N", f"{url}/fine_tuning/jobs/{job['id']}/events?stream=true").decode()
    done = json.loads(stream.rsplit("event: done\ndata: ", 1)[1].split("\n")[0])
    assert done["status"] == "succeeded"
    content = curl(f"{url}/adapters/{done['adapter_id']}/content")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = archive.getnames()
    assert "adapter_model.safetensors" in names
    part = curl("-r", "0-7", f"{url}/files/{file['id']}/content")
    assert part == rows.read_bytes()[:8]


def test_the_real_openai_client_drives_a_job(service: Service, rows: Path) -> None:
    with openai.OpenAI(
        base_url=service.url, api_key=service.api_key, _strict_response_validation=True
    ) as client:
        with rows.open("rb") as content:
            file = client.files.create(file=content, purpose="fine-tune")
        client.files.wait_for_processing(file.id, poll_interval=0.1)
        job = client.fine_tuning.jobs.create(
            model="tiny", training_file=file.id, extra_body={"recipe": ENDLESS}
        )
        assert job.id in [item.id for item in client.fine_tuning.jobs.list(limit=5)]

        def training() -> bool:
            page = client.fine_tuning.jobs.list_events(job.id, limit=5)
            return any(event.type == "metrics" for event in page.data)

        until(training)
        client.fine_tuning.jobs.cancel(job.id)
        until(lambda: client.fine_tuning.jobs.retrieve(job.id).status == "cancelled", 5)
        events = list(client.fine_tuning.jobs.list_events(job.id, limit=7))
        numbers = [int(event.id.rsplit("-", 1)[1]) for event in events]
        assert numbers == list(range(len(events), 0, -1))


@pytest.mark.parametrize("name", ["sft_chat.py", "grpo_maths.py"])
def test_the_examples_run_as_they_stand(
    service: Service, rows: Path, tmp_path: Path, name: str
) -> None:
    data = rows
    if name.startswith("grpo"):
        data = tmp_path / "questions.jsonl"
        asked = [{"prompt": f"How much is {a} plus 2?", "answer": str(a + 2)} for a in range(9)]
        data.write_text("".join(json.dumps(row) + "\n" for row in asked))
    told = subprocess.run(
        [sys.executable, str(Path(__file__).parents[2] / "examples" / name), "tiny", data, "2"],
        env=os.environ | {"TUNESMITH_BASE_URL": service.url, "TUNESMITH_API_KEY": service.api_key},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = tmp_path / told.stdout.strip().rsplit(" is in ", 1)[1]
    assert (folder / "adapter_config.json").is_file()
