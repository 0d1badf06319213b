"""TRL's chunked function is what ours stands in for: the same outputs and gradients."""

from __future__ import annotations

import pytest
import torch

from tunesmith_kernels.log_prob import token_log_probs

from .heads import Head

OPTIONS = [
    (1.0, None, 1.0),
    (0.7, None, 1.0),
    (1.3, 30.0, 0.0625),
    (0.9, 5.0, 2.0),
]


@pytest.mark.parametrize(("temperature", "softcap", "logit_scale"), OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_numbers_as_trl(
    temperature: float, softcap: float | None, logit_scale: float, dtype: torch.dtype
) -> None:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    # in half precision TRL rounds before it adds the bias, ours after
    head = Head.random(40, 1000, 32, bias=dtype == torch.float32, dtype=dtype)
    theirs, ours = head.leaves(dtype), head.leaves(dtype)
    log_probs, entropy, _, _, is_top1 = ChunkedLogProbFunction.apply(
        *theirs, head.targets, temperature, 256, softcap, logit_scale, ("entropy", "is_top1")
    )
    scored = token_log_probs(
        *ours,
        head.targets,
        temperature=temperature,
        softcap=softcap,
        logit_scale=logit_scale,
        entropy="grad",
        top1=True,
    )
    torch.testing.assert_close(scored.log_probs, log_probs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scored.entropy, entropy, rtol=1e-5, atol=1e-5)
    assert scored.entropy is not None
    assert scored.is_top1 is not None
    assert torch.equal(scored.is_top1, is_top1)
    upstream = [head.by_log_prob.float(), head.by_entropy.float()]
    by_ours = torch.autograd.grad([scored.log_probs, scored.entropy], ours[:2], upstream)
    by_theirs = torch.autograd.grad([log_probs, entropy], theirs[:2], upstream)
    for mine, their in zip(by_ours, by_theirs, strict=True):
        error = float((mine - their).norm() / their.norm())
        assert error < (1e-5 if dtype == torch.float32 else 1e-2)
