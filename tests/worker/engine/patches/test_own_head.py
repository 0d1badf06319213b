"""The loss is the model's own, also where TRL's fused head computes something else."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import transformers
from benchmarks.models.configs import small_config
from torch.nn.functional import cross_entropy
from trl.trainer.utils import add_fused_lm_head

from tunesmith_worker.engine.patches.own_head import OwnHead, check_head
from tunesmith_worker.rundir.errors import RunError

from .models import make_tuned

Untyped = Any  # Any: transformers is not typed

OTHER_LOGITS: dict[str, dict[str, Untyped]] = {
    "bert": {},
    "recurrent_gemma": {"logits_soft_cap": 1.0},
    "modernbert-decoder": {},
    "rembert": {},
    "llama4_text": {},
}


def prepared(model_type: str, **changes: Untyped) -> Untyped:
    """Make a small model with TRL's head and weights whose logits are large."""
    config = small_config(model_type, 384)
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(10.0)
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    return model


def _has_causal_mask(model: Untyped) -> bool:
    """Return False for RemBERT before transformers 5.18, whose decoder reads later tokens."""
    return hasattr(sys.modules[type(model).__module__], "create_causal_mask")


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(3, 51).view(2, 24) * 7 % 384
    labels = ids.clone()
    labels[:, :5] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("model_type", OTHER_LOGITS)
def test_the_loss_is_the_cross_entropy_of_the_models_logits(model_type: str) -> None:
    model, inputs = prepared(model_type, **OTHER_LOGITS[model_type]), batch()
    if model_type == "rembert" and not _has_causal_mask(model):
        with pytest.raises(RunError, match="RemBertForCausalLM is not a causal language model"):
            check_head(model)
        return
    assert check_head(model)
    OwnHead(model)
    output = model(**inputs, fused_lm_head=True)
    inputs_only = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    logits = type(model).forward(model, **inputs_only, use_cache=False).logits
    expected = cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert output.log_probs.shape == output.is_top1.shape == output.entropy.shape == (2, 23)
    assert not output.log_probs[:, :4].any()
    output.loss.backward()


@pytest.mark.parametrize("model_type", ["gpt2", "falcon", "mamba", "cohere2_moe"])
def test_the_fused_head_stays_where_it_computes_the_models_logits(model_type: str) -> None:
    assert check_head(prepared(model_type)) is None


def test_a_family_with_our_kernels_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tuned("llama", "full")
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: pytest.fail("it ran"))
    assert check_head(model) is None


def test_a_model_that_reads_later_tokens_is_refused() -> None:
    model = prepared("bert", is_decoder=False)
    with pytest.raises(RunError, match="BertLMHeadModel is not a causal language model") as error:
        check_head(model)
    assert "is_decoder=true" in str(error.value.failure.hint)


def test_a_model_without_a_balancing_loss_gets_none() -> None:
    model = prepared("llama4_text")
    OwnHead(model)
    output = model(**batch(), fused_lm_head=True, output_router_logits=True)
    assert output.aux_loss.item() == 0.0
