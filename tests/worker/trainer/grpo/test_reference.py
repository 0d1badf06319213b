"""The reference of the KL term is the model before its first step, whatever trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from trl.trainer.utils import add_fused_lm_head

from tests.worker.conftest import MakeRun
from tests.worker.runs import read_result
from tests.worker.trainer.checkpoints.interrupted import interrupt, weights_hash
from tests.worker.trainer.selfcheck.test_no_false_alarm import folder_of
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.trainer.methods.completion_scores import score_completions
from tunesmith_worker.trainer.methods.groups import GroupRow
from tunesmith_worker.trainer.methods.grpo import GRPOTrainer
from tunesmith_worker.trainer.run import main

from .test_exactness import ASKED, BASE, GRPO, LENGTH

Untyped = Any  # Any: transformers is not typed
TRAINED: dict[str, dict[str, Any]] = {
    "all biases": {"lora": {"r": 4, "bias": "all"}},
    "biases of adapted layers": {"lora": {"r": 4, "bias": "lora_only"}},
}


@pytest.fixture(scope="module")
def with_biases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("llama-bias", tmp_path_factory.mktemp("biases") / "model")


def make(make_run: MakeRun, folder: Path, trained: str, name: str = "run") -> Path:
    recipe = BASE | {"grpo": GRPO | {"beta": 0.1}, "max_steps": 3} | TRAINED[trained]
    return make_run(
        ASKED,
        recipe=recipe,
        name=name,
        method="reinforcement",
        grader=LENGTH,
        model_path=str(folder),
    )


@pytest.mark.parametrize("trained", TRAINED)
def test_the_reference_is_the_base_model_at_every_step(
    make_run: MakeRun, with_biases: Path, monkeypatch: pytest.MonkeyPatch, trained: str
) -> None:
    seen: list[tuple[list[GroupRow], torch.Tensor]] = []
    stock = GRPOTrainer._without_gradient

    def without_gradient(trainer: Untyped, model: Untyped, width: int) -> Untyped:
        scores = stock(trainer, model, width)
        if scores is not None:
            seen.append((list(trainer._rows), scores.clone()))
        return scores

    monkeypatch.setattr(GRPOTrainer, "_without_gradient", without_gradient)
    run = make(make_run, with_biases, trained)
    assert main(run) == 0, read_result(run).error
    base = transformers.AutoModelForCausalLM.from_pretrained(with_biases)
    add_fused_lm_head(base)
    patch(base)
    assert len(seen) == 3
    for rows, scores in seen:
        with torch.no_grad():
            expected = score_completions(base, rows, layout="plain", device=base.device).log_probs
        width = expected.shape[1]
        assert torch.allclose(scores[:, :width], expected, rtol=1e-5, atol=1e-5)


def test_trained_biases_are_saved_as_trained_and_a_resumed_run_has_the_same_reference(
    make_run: MakeRun, with_biases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(make_run, with_biases, "all biases", "whole")
    assert main(whole) == 0, read_result(whole).error
    saved = load_file(whole / "adapter" / "adapter_model.safetensors")
    base = transformers.AutoModelForCausalLM.from_pretrained(with_biases).state_dict()
    name = "model.layers.0.self_attn.v_proj"
    (key,) = (key for key in saved if name in key and key.endswith("bias"))
    assert not torch.equal(saved[key].float(), base[f"{name}.bias"])
    broken = make(make_run, with_biases, "all biases", "broken")
    assert interrupt(broken, monkeypatch, kill=3) == 1
    assert main(broken) == 0, read_result(broken).error
    assert weights_hash(broken) == weights_hash(whole)
