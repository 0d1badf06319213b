"""The engine on a card: the same laws from the training model's own forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import make_model, relative_rms, with_lora
from tunesmith_worker.engine.rollout import Request, SamplingParams, native

from .rollouts import LAYOUTS, engine_of, make_prompts

Untyped = Any  # Any: transformers is not typed


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "mistral"])
@pytest.mark.parametrize("weights", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-3), (torch.bfloat16, 5e-2)], ids=["fp32", "bf16"]
)
def test_logprobs_on_a_card(family: str, weights: Any, dtype: torch.dtype, bound: float) -> None:
    """fp32 within what TF32 leaves of it."""
    model = with_lora(make_model(family, dtype=dtype)).cuda()
    prompts = make_prompts(5, 30, 12)
    requests = [
        Request(
            prompt_ids=prompts[i % 3],
            max_tokens=8 + i,
            seed=i,
            sampling=SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1),
        )
        for i in range(9)
    ]
    engine = engine_of(model, weights, max_rows=4)
    completions = engine.generate(requests)
    assert engine.figures.recording_error == ""
    assert 0 < engine.figures.graph_steps < engine.figures.decode_steps
    found, expected = [], []
    for request, one in zip(requests, completions, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *one.token_ids]], device="cuda")
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0].float() / 0.8
        start = len(request.prompt_ids)
        scores = logits.log_softmax(-1)[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        found.append(torch.tensor(one.policy_logprobs))
        expected.append(scores.cpu())
    assert relative_rms(torch.cat(found), torch.cat(expected)) <= bound


@pytest.mark.gpu
def test_graphs_draw_what_steps_draw_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32, where a token hardly ever depends on rounding. Room grows, and rows leave."""
    model = with_lora(make_model("qwen3")).cuda()
    prompts = make_prompts(5, 30, 12)
    requests = [
        Request(prompt_ids=prompts[i % 3], max_tokens=40 + 10 * i, seed=i) for i in range(9)
    ]
    engine = engine_of(model)
    recorded = engine.generate(requests)
    assert engine.figures.graph_steps > 80
    monkeypatch.setattr(native, "recorder_for", lambda device: None)
    plain = engine.generate(requests)
    assert engine.figures.graph_steps == 0
    assert [one.token_ids for one in recorded] == [one.token_ids for one in plain]
