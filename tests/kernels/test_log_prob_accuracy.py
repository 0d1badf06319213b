"""Where softmax arithmetic goes wrong: certain labels, large logits, the ends of the vocabulary."""

from __future__ import annotations

import pytest
import torch

from tunesmith_kernels.log_prob import token_log_probs, token_log_probs_reference

from .heads import accumulate

TOLERANCE = 1e-6


def scored_logits(
    logits: torch.Tensor, targets: torch.Tensor, **options: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of given logits and their gradients: a head that is the identity."""
    hidden = logits.clone().requires_grad_()
    weight = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    log_probs = token_log_probs(hidden, weight, None, targets, **options).log_probs  # type: ignore[arg-type]  # floats
    return log_probs, torch.autograd.grad(log_probs.sum(), hidden)[0]


def exact(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64, without 1 - p."""
    z = logits.double()
    label = torch.nn.functional.one_hot(targets, z.shape[1]).bool()
    others = z.masked_fill(label, -torch.inf)
    distance = others.logsumexp(1, keepdim=True) - z[label][:, None]
    rest = torch.sigmoid(distance)
    gradient = torch.where(label, rest, -rest * others.softmax(1))
    return -torch.nn.functional.softplus(distance, threshold=1e9)[:, 0], gradient


@pytest.mark.parametrize("kind", ["flat", "random", "one rival"])
def test_a_certain_label_keeps_its_loss_and_gradient(device: torch.device, kind: str) -> None:
    """Relative to float64, although 1 - p and logsumexp - z would be 0 from a margin of 17 on."""
    margins = torch.arange(0.0, 40.5, 0.5, device=device)
    logits = torch.zeros(len(margins), 50, device=device)
    if kind == "random":
        # multiples of 1/8: a margin is then a number of fp32
        logits = (torch.randn_like(logits) * 8).round() / 8
    if kind == "one rival":
        logits -= 60.0
        logits[:, 7] = 0.0
    targets = torch.arange(len(margins), device=device) % 7
    rows = torch.arange(len(margins), device=device)
    logits[rows, targets] = -torch.inf
    logits[rows, targets] = logits.amax(1) + margins
    log_probs, gradient = scored_logits(logits, targets)
    true_log_probs, true_gradient = exact(logits, targets)
    assert float(true_log_probs.abs().min()) < 1e-15
    torch.testing.assert_close(log_probs.double(), true_log_probs, rtol=TOLERANCE, atol=0.0)
    # q_j of a rival 60 below the best is exp(-60), whose exponent is rounded
    torch.testing.assert_close(gradient.double(), true_gradient, rtol=4 * TOLERANCE, atol=1e-24)
    label = gradient.gather(1, targets[:, None]).double()
    torch.testing.assert_close(
        label, true_gradient.gather(1, targets[:, None]), rtol=TOLERANCE, atol=0.0
    )


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_large_logits_stay_finite(device: torch.device, size: float) -> None:
    logits = torch.randn(40, 100, device=device).clamp(-1, 1) * size
    targets = torch.arange(40, device=device) % 100
    targets[-1] = 99
    hidden = logits.clone().requires_grad_()
    weight = torch.eye(100, device=device)
    scored = token_log_probs(hidden, weight, None, targets, entropy="grad")
    truth = token_log_probs_reference(logits.double(), weight.double(), None, targets)
    assert scored.entropy is not None
    assert truth.entropy is not None
    torch.testing.assert_close(scored.log_probs.double(), truth.log_probs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(scored.entropy.double(), truth.entropy, rtol=1e-4, atol=1e-6)
    accumulate(scored.log_probs.sum() + scored.entropy.sum())
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


def test_a_vocabulary_of_one_is_certain(device: torch.device) -> None:
    logits = torch.tensor([[3.0], [-1e4]], device=device)
    log_probs, gradient = scored_logits(logits, torch.zeros(2, dtype=torch.long, device=device))
    assert log_probs.tolist() == [0.0, 0.0]
    assert gradient.tolist() == [[0.0], [0.0]]


def test_a_nan_in_the_hidden_state_is_not_hidden(device: torch.device) -> None:
    hidden = torch.randn(3, 8, device=device)
    hidden[1, 2] = torch.nan
    scored = token_log_probs(
        hidden, torch.randn(20, 8, device=device), None, torch.tensor([1, 2, 3], device=device)
    )
    assert scored.log_probs.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_a_soft_cap_is_smooth_from_tiny_to_saturated_logits(
    device: torch.device, cap: float
) -> None:
    logits = torch.logspace(-4, 3, 64, device=device).repeat(4, 1)
    logits[:, ::2] *= -1
    targets = torch.tensor([0, 20, 40, 63], device=device)
    hidden = logits.clone().requires_grad_()
    scored = token_log_probs(hidden, torch.eye(64, device=device), None, targets, softcap=cap)
    wide = logits.double().requires_grad_()
    truth = token_log_probs_reference(
        wide, torch.eye(64, device=device).double(), None, targets, softcap=cap
    )
    torch.testing.assert_close(scored.log_probs.double(), truth.log_probs, rtol=1e-6, atol=1e-6)
    ours = torch.autograd.grad(scored.log_probs.sum(), hidden)[0]
    true = torch.autograd.grad(truth.log_probs.sum(), wide)[0]
    torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-6)
