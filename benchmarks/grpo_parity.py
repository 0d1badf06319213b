"""Compare loss and gradients of our trainer and stock TRL on the same ragged completions. Prints
one JSON line.

Both trainers have the same weights and the same nonzero adapter. Our trainer runs the forward pass
of a group's prompt only once, as in training.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import grpo_side
from benchmarks.grpo_side import Prepare
from benchmarks.grpo_task import GROUP, Task, stock_model

Untyped = Any  # Any: transformers, PEFT and TRL are not typed


def compare(task: Task, folder: Path) -> NoReturn:
    """Print the result of `difference`, and exit before the first step."""

    def prepared(prepare: Prepare, context: Untyped, loaded: Untyped) -> Untyped:
        print(json.dumps(difference(task, prepare(context, loaded).trainer, folder)))
        sys.exit()

    grpo_side.run_ours(task, folder, prepared)
    raise AssertionError("prepared() exits")


def difference(task: Task, ours: Untyped, folder: Path) -> dict[str, float]:
    """Compare one step with stock TRL. All differences are relative. `gradient_difference` is the
    RMS difference over all gradients; `worst_gradient` is the largest RMS difference of a single
    gradient."""
    stock = grpo_side.stock_trainer(task, stock_model(task), folder / "stock")
    trained = {
        name: tensor for name, tensor in ours.model.named_parameters() if tensor.requires_grad
    }
    theirs = {
        name: tensor for name, tensor in stock.model.named_parameters() if tensor.requires_grad
    }
    assert trained.keys() == theirs.keys()
    torch.manual_seed(2)
    with torch.no_grad():
        for name, tensor in trained.items():
            if "lora_B" in name:  # otherwise LoRA's B is zero, and A gets no gradient
                tensor.normal_(std=0.02)
            theirs[name].copy_(tensor)
    loss = step_of_ours(ours)
    completions = [list(completion.token_ids) for completion in ours.rollout.completions]
    stock._generate_single_turn = lambda *_, **__: (completions, None)
    stock.model.train()
    stock.current_gradient_accumulation_steps = 1
    batch = stock._generate_and_score_completions(inputs_of(ours))
    assert batch["prompt_ids"].tolist() == [
        list(prompt.prompt_ids) for prompt in ours.rollout.prompts
    ]
    expected = stock.compute_loss(stock.model, batch)
    expected.backward()
    errors, sizes = [], []
    for name, tensor in trained.items():
        right = theirs[name].grad.float()
        errors.append((tensor.grad.float() - right).square().sum())
        sizes.append(right.square().sum())
    error, size = torch.stack(errors), torch.stack(sizes)
    return {
        "loss": expected.item(),
        "loss_difference": abs(loss.item() / expected.item() - 1),
        "gradient_difference": float((error.sum() / size.sum()).sqrt()),
        "worst_gradient": float((error / size).sqrt().max()),
    }


def inputs_of(ours: Untyped) -> list[Untyped]:
    return [ours.train_dataset[place] for place in range(2) for _ in range(GROUP)]


def step_of_ours(ours: Untyped) -> torch.Tensor:
    ours.model.train()
    batch = ours._generate_and_score_completions(inputs_of(ours))
    loss: torch.Tensor = ours.train_on(ours.model, batch)
    return loss


def main() -> None:
    options = grpo_side.parser().parse_args()
    torch.set_num_threads(1)
    task = replace(grpo_side.task_of(options), ragged=True, steps=1)
    with tempfile.TemporaryDirectory() as folder:
        compare(task, Path(folder))


if __name__ == "__main__":
    main()
