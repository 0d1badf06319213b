"""`tunesmith eval --tasks`: lm-eval runs a local task against the service, and its results are
stored. Skipped where lm-eval is not installed (extra [eval])."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.tiny_model import make_tiny_model

from .service import QUICK, Service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed"),
]

DOCUMENTS: list[dict[str, Any]] = [
    {"question": f"The capital of country {n} is", "choices": ["Paris", "seven"], "answer": n % 2}
    for n in range(12)
]
TASK = """
task: capitals
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
metadata:
  version: 1.0
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    make_tiny_model(tmp_path / "models" / "tiny")
    running = Service(tmp_path / "data", tmp_path / "models", **QUICK, TUNESMITH_WARM_TRAINER="0")
    running.start()
    yield running
    running.close()


def accuracy(folder: Path) -> float:
    """Compute the accuracy with plain transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    correct = 0
    for document in DOCUMENTS:
        start = tokenizer(document["question"], add_special_tokens=False)["input_ids"]
        scores = []
        for choice in document["choices"]:
            text = f"{document['question']} {choice}"
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            places = range(len(start), len(ids))
            scores.append(sum(float(log_probs[i - 1, ids[i]]) for i in places))
        correct += int(scores[1] > scores[0]) == document["answer"]
    return correct / len(DOCUMENTS)


def test_a_local_task_runs_through_the_service_and_its_result_is_stored(
    service: Service, tmp_path: Path
) -> None:
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, DOCUMENTS)))
    (tmp_path / "tasks").mkdir()
    task = TASK.format(file=tmp_path / "documents.jsonl")
    (tmp_path / "tasks" / "capitals.yaml").write_text(task)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tunesmith.cli", "--base-url", service.url),
            *("--api-key", service.api_key, "eval", "tiny", "--tasks", "capitals"),
            *("--include-path", str(tmp_path / "tasks"), "--json"),
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    stored = json.loads(done.stdout)
    assert (stored["kind"], stored["status"]) == ("tasks", "succeeded")
    [result] = stored["task_results"]["tasks"]
    assert (result["task"], result["samples"]) == ("capitals", len(DOCUMENTS))
    assert result["metrics"]["acc,none"] == pytest.approx(accuracy(tmp_path / "models" / "tiny"))
    client = service.client()
    [listed] = client.evaluations.list()
    assert listed.id == stored["id"]
    assert (listed.verdict or "").startswith("capitals acc ")
