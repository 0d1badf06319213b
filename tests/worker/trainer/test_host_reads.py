"""Between a micro-batch's start and the optimiser's step nobody reads a tensor on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from accelerate import Accelerator  # type: ignore[import-untyped]  # ships no types
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS
from tunesmith_worker.trainer.run import main

from .host_reads import HostReads, watched

Untyped = Any  # Any: transformers is untyped

ON_A_CPU_ONLY = {
    "tunesmith_kernels/log_prob.py:<genexpr> (_local_scalar_dense)": "targets are checked",
    "tunesmith_kernels/head_rows.py:_find_top1 (nonzero)": "a GPU's kernel breaks ties itself",
}


def counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], int]:
    """Reads in the steps after the first, and how many micro-batches those had."""
    reads, passes, open_steps = HostReads(), Counter[str](), ExitStack()
    step_of_trl, clip = trl.SFTTrainer.training_step, Accelerator.clip_grad_norm_

    def training_step(trainer: Untyped, *arguments: Untyped) -> Untyped:
        if trainer.state.global_step == 0:
            return step_of_trl(trainer, *arguments)
        passes["all"] += 1
        with watched(reads):
            return step_of_trl(trainer, *arguments)

    def clip_grad_norm(*arguments: Untyped, **named: Untyped) -> Untyped:
        with watched(reads):
            return clip(*arguments, **named)

    monkeypatch.setattr(trl.SFTTrainer, "training_step", training_step)
    monkeypatch.setattr(Accelerator, "clip_grad_norm_", clip_grad_norm)
    hooks = (
        register_optimizer_step_pre_hook(lambda *_: open_steps.enter_context(watched(reads))),
        register_optimizer_step_post_hook(lambda *_: open_steps.close()),
    )
    try:
        assert main(run) == 0
    finally:
        for hook in hooks:
            hook.remove()
    return reads.found, passes["all"]


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool((x > 0).all()), "_local_scalar_dense"),
        (lambda x: f"{x[0]}", "_local_scalar_dense"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "cpu"),
        (lambda x: x.repeat_interleave(x.long()), "repeat_interleave"),
        (lambda x: torch.where(x > 0), "nonzero"),
    ],
)
def test_every_way_to_read_a_tensor_is_found(read: Callable[[Untyped], object], what: str) -> None:
    reads = HostReads()
    with watched(reads):
        read(torch.ones(3))
    assert [who.endswith(f"/test_host_reads.py:<lambda> ({what})") for who in reads.found] == [True]


@pytest.mark.parametrize(
    "recipe",
    [
        {"packing": False},
        {"packing": True},
        {"tuning": "full", "lora": None},
        {"add_tokens": ["<new>"]},
        {
            "lora": {"target_modules": ["q_proj", "lm_head"]},
            "allow_full_embeddings": True,
        },
    ],
    ids=["lora", "packed", "full", "token-rows", "whole-matrices"],
)
def test_nobody_reads_the_device_in_a_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, recipe: dict[str, Any]
) -> None:
    usual = {"max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    run = make_run(QUESTIONS, recipe={**usual, "logging_steps": 3, **recipe})
    found, passes = counted(run, monkeypatch)
    assert passes >= 2
    assert {who: n for who, n in found.items() if who not in ON_A_CPU_ONLY} == {}


def test_a_stock_model_reads_only_where_its_libraries_do(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded rows through transformers' and TRL's own code: theirs to mend."""
    recipe = {"max_steps": 3, "per_device_train_batch_size": 2, "logging_steps": 3}
    run = make_run(QUESTIONS, recipe={**recipe, "patches": "off", "packing": False})
    found, _ = counted(run, monkeypatch)
    assert set(found) == {
        "transformers/masking_utils.py:_ignore_causal_mask_sdpa (_local_scalar_dense)"
    }
