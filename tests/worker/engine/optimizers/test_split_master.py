"""SplitMasterAdamW is fp32 AdamW on weights that the model sees in bf16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tunesmith_kernels.error_word import join_words, split_words
from tunesmith_worker.engine.optimizers.eight_bit import StochasticAdamW, mix_seed
from tunesmith_worker.engine.optimizers.split_master import SplitMasterAdamW

Parameters = list[torch.nn.Parameter]
SHAPES = [(40, 130), (7,), (513, 17), (64, 64)]


def parameters(seed: int = 0) -> Parameters:
    torch.manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape).bfloat16()) for shape in SHAPES]


def give_gradients(to: Parameters, step: int, dtype: torch.dtype = torch.bfloat16) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for p in to:
        grad = torch.randn(p.shape, generator=generator) * 10.0 ** (-(step % 5))
        p.grad = grad.bfloat16().to(dtype)


def groups(of: Parameters) -> list[dict[str, Any]]:  # Any: torch's groups
    return [{"params": of[::2], "weight_decay": 0.1}, {"params": of[1::2], "weight_decay": 0.0}]


def test_the_trajectory_is_fp32_adamws_bit_for_bit() -> None:
    ours, theirs = parameters(), [torch.nn.Parameter(p.detach().float()) for p in parameters()]
    word = SplitMasterAdamW(groups(ours), lr=3e-4)
    fp32 = torch.optim.AdamW(groups(theirs), lr=3e-4, fused=True)
    for step in range(60):
        give_gradients(ours, step)
        give_gradients(theirs, step, torch.float32)
        for optimizer in (word, fp32):
            for group in optimizer.param_groups:
                group["lr"] = 3e-4 * (1 - step / 60)
            optimizer.step()
    for mine, exact in zip(ours, theirs, strict=True):
        assert torch.equal(word.master(mine), exact.detach())
        assert torch.equal(mine.detach(), split_words(exact.detach())[0])
        assert torch.equal(word.state[mine]["exp_avg_sq"], fp32.state[exact]["exp_avg_sq"].view(-1))


def moved_by(optimizer: torch.optim.Optimizer, p: torch.nn.Parameter, steps: int) -> None:
    """Updates of +1e-5 each: with a constant gradient, lr is the size of AdamW's step."""
    for _ in range(steps):
        p.grad = torch.full_like(p, -1.0)
        optimizer.step()


def test_c1_ten_thousand_small_updates_are_kept_by_error_words() -> None:
    p = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = SplitMasterAdamW([p], lr=1e-5)
    moved_by(optimizer, p, 10_000)
    assert optimizer.master(p).tolist() == pytest.approx([1.1] * 8, rel=1e-3)
    assert p.tolist() == pytest.approx([1.1] * 8, rel=0.01)


def test_c1_plain_bf16_loses_them_all() -> None:
    p = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    moved_by(torch.optim.AdamW([p], lr=1e-5, weight_decay=0.0, fused=True), p, 10_000)
    assert p.tolist() == [1.0] * 8


def test_c1_stochastic_rounding_keeps_them_in_the_mean() -> None:
    """10,000 steps of a chance of 1e-5 / 2^-7 each: the mean of 4,096 weights within 3 sigma."""
    p = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = StochasticAdamW([p], lr=1e-5, seed=1)
    moved_by(optimizer, p, 10_000)
    assert "m_code" in optimizer.state[p]
    sigma = (0.1 * 2**-7) ** 0.5 / 64
    assert abs(p.detach().double().mean().item() - 1.1) < 3 * sigma


@pytest.mark.parametrize(
    "make", [SplitMasterAdamW, lambda p, lr: StochasticAdamW(p, lr=lr, seed=5)]
)
def test_a_run_taken_up_again_is_the_same_run(
    make: Callable[..., SplitMasterAdamW], tmp_path: Path
) -> None:
    """Through safetensors and numbers, which is all that a checkpoint may hold."""
    whole, half = parameters(), parameters()
    straight, first = make(groups(whole), lr=1e-3), make(groups(half), lr=1e-3)
    for step in range(6):
        give_gradients(whole, step)
        straight.step()
        if step < 3:
            give_gradients(half, step)
            first.step()
    saved = first.state_dict()
    tensors = {
        f"{index}.{name}": value
        for index, state in saved["state"].items()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    save_file(tensors, tmp_path / "optimizer.safetensors")
    read = load_file(tmp_path / "optimizer.safetensors")
    numbers = {index: {"step": state["step"]} for index, state in saved["state"].items()}
    for index, state in numbers.items():
        assert type(state["step"]) is int
        own = f"{index}."
        state |= {k.removeprefix(own): v for k, v in read.items() if k.startswith(own)}
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in half]
    second = make(groups(resumed), lr=9.0)
    second.load_state_dict({"state": numbers, "param_groups": saved["param_groups"]})
    for p, q in zip(half, resumed, strict=True):
        for name, value in first.state[p].items():
            loaded = second.state[q][name]
            if isinstance(value, torch.Tensor):
                assert loaded.dtype == value.dtype
                assert torch.equal(loaded, value)
                assert loaded.data_ptr() != read.get(name, value).data_ptr()
            else:
                assert loaded == value
    for step in range(3, 6):
        give_gradients(resumed, step)
        second.step()
    for p, q in zip(whole, resumed, strict=True):
        assert torch.equal(p, q)
        assert all(
            torch.equal(value, second.state[q][name])
            for name, value in straight.state[p].items()
            if isinstance(value, torch.Tensor)
        )


def test_c6_weights_are_the_masters_as_torch_rounds_them_while_saving() -> None:
    """Two weights lie half-way between two bf16, where our rounding and torch's may differ."""
    master = torch.tensor([0x3F808000, 0x3F818000, 0x3F801234], dtype=torch.int32)
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    optimizer = SplitMasterAdamW([p], lr=1e-30)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    p.data, optimizer.state[p]["error"] = split_words(master.view(torch.float32))
    before = p.detach().clone()
    with optimizer.rounded_to_even():
        assert torch.equal(p.detach(), master.view(torch.float32).bfloat16())
        assert not torch.equal(p.detach(), before), "the first of them is a tie that differs"
    assert torch.equal(p.detach(), before)
    assert torch.equal(optimizer.master(p).view(torch.int32), master)


def test_twelve_bytes_a_weight_and_four() -> None:
    def held(optimizer: torch.optim.Optimizer, p: torch.nn.Parameter) -> float:
        p.grad = torch.zeros_like(p)
        optimizer.step()
        state = [t for t in optimizer.state[p].values() if isinstance(t, torch.Tensor)]
        return sum(t.numel() * t.element_size() for t in [p, *state]) / p.numel()

    one, other = (torch.nn.Parameter(torch.zeros(256, 256).bfloat16()) for _ in range(2))
    assert held(SplitMasterAdamW([one], lr=1e-3), one) == 12
    assert held(StochasticAdamW([other], lr=1e-3, seed=0), other) == 4 + 8 / 256


def test_gradients_can_be_clipped_and_left_out() -> None:
    p, frozen = (torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = SplitMasterAdamW([p, frozen], lr=1e-2)
    p.grad = torch.tensor([30.0, 40.0, 0.0, 0.0]).bfloat16()
    assert torch.nn.utils.clip_grad_norm_([p, frozen], 1.0) == 50.0
    optimizer.step()
    assert p.grad.norm() <= 1.0
    assert frozen not in optimizer.state or not optimizer.state[frozen]
    assert torch.equal(frozen.detach(), torch.ones(4).bfloat16())


def test_norms_and_small_tensors_keep_error_words_beside_8_bits() -> None:
    norm, small, matrix = (
        torch.nn.Parameter(torch.ones(*shape, dtype=torch.bfloat16))
        for shape in [(8192,), (32, 32), (64, 64)]
    )
    optimizer = StochasticAdamW([norm, small, matrix], lr=1e-3, seed=0)
    for p in (norm, small, matrix):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert ["error" in optimizer.state[p] for p in (norm, small, matrix)] == [True, True, False]


def test_what_a_model_keeps_in_fp32_gets_plain_adamw() -> None:
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 100)) for _ in range(2))
    for optimizer, p in (
        (SplitMasterAdamW([ours], lr=1e-3), ours),
        (torch.optim.AdamW([theirs], lr=1e-3, weight_decay=0.0, fused=True), theirs),
    ):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(4, dtype=torch.float16), torch.zeros(4, 4).bfloat16().T[:2]]
)
def test_parameters_it_cannot_train_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="contiguous, in bf16 or fp32"):
        SplitMasterAdamW([torch.nn.Parameter(wrong)], lr=1e-3)


def test_seeds_of_places_and_steps_are_all_different() -> None:
    seeds = {
        mix_seed(seed, step, index) for seed in range(9) for step in range(9) for index in range(9)
    }
    assert len(seeds) == 9**3
    assert all(0 <= seed < 1 << 62 for seed in seeds)


def test_a_master_without_error_word_is_the_weight_itself() -> None:
    p = parameters()[0]
    optimizer = SplitMasterAdamW([p], lr=1e-3)
    assert torch.equal(optimizer.master(p), p.detach().float())
    assert torch.equal(join_words(p.detach(), torch.zeros(p.shape, dtype=torch.int16)), p.float())
