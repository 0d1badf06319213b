"""Our GRPO trainer and TRL's, with the same prompts, completions and rewards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
import trl

from tunesmith_schema import GRPORecipe
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.rollout import Completion, FinishReason, RolloutFigures
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.rundir.plan import TrainPlan
from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.data.prompts import Prompts
from tunesmith_worker.trainer.methods.config import grpo_config
from tunesmith_worker.trainer.methods.engine_mismatch import Mode
from tunesmith_worker.trainer.methods.grpo import GRPOTrainer
from tunesmith_worker.trainer.methods.kept_rollouts import KeptRollouts
from tunesmith_worker.trainer.methods.rollouts import RolloutRunner
from tunesmith_worker.trainer.rewards import CompletionText, Graded

Untyped = Any  # Any: transformers and TRL are not typed
GENERATIONS = 4
LONGEST = 9
EOS = 2
ADAM: dict[str, Untyped] = {"fused": True, "eps": 1e-3}
"""With the usual `eps`, Adam turns the rounding of tiny gradients into whole steps. Losses after
the first step would then depend on the kind of CPU."""
Rewards = Callable[[Sequence[int]], Sequence[float | None]]
"""Function from the token ids of a completion to one reward per grader."""


@dataclass
class Task:
    """Prompts with `GENERATIONS` completions each, and their rewards."""

    completions: Mapping[tuple[int, ...], list[list[int]]]
    rewards: Rewards
    weights: tuple[float, ...] = (1.0,)
    log_probs: Callable[[Sequence[int]], list[float]] | None = None
    """Function from the token ids of a completion to the log-probs that the engine reports; None:
    zeros, and none in TRL."""


def make_task(rewards: Rewards, weights: tuple[float, ...] = (1.0,), vocabulary: int = 96) -> Task:
    """Make two prompts of unequal length. Completions have 1 to LONGEST tokens; most of them end
    with EOS."""
    generator = torch.Generator().manual_seed(7)

    def ids(count: int) -> list[int]:
        found: list[int] = torch.randint(5, vocabulary, (count,), generator=generator).tolist()
        return found

    lengths = {5: (3, 1, 6, LONGEST), 2: (4, 2, LONGEST, 5)}
    return Task(
        completions={
            tuple(ids(prompt)): [
                ids(length) if length == LONGEST else [*ids(length - 1), EOS] for length in each
            ]
            for prompt, each in lengths.items()
        },
        rewards=rewards,
        weights=weights,
    )


class GivenEngine:
    """Engine that returns the task's completions, in the order of the group."""

    name, weights = "native", "merged"
    batch_invariant = True
    figures = RolloutFigures()

    def __init__(self, task: Task) -> None:
        self._task = task

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def generate(
        self, requests: Sequence[Untyped], finished: Callable[[int, Completion], None]
    ) -> list[Completion]:
        counts: dict[tuple[int, ...], int] = {}
        found = []
        for place, request in enumerate(requests):
            number = counts.get(request.prompt_ids, 0)
            counts[request.prompt_ids] = number + 1
            ids = self._task.completions[request.prompt_ids][number]
            ended = FinishReason.STOP if ids[-1] == EOS else FinishReason.LENGTH
            one = Completion(
                token_ids=ids,
                sampling_logprobs=[0.0] * len(ids),
                policy_logprobs=(self._task.log_probs or _zeros)(ids),
                finish_reason=ended,
            )
            finished(place, one)
            found.append(one)
        return found


@dataclass
class GivenRound:
    task: Task
    ids: dict[int, Sequence[int]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def add(self, place: int, sample: CompletionText, completion_ids: Sequence[int]) -> None:
        self.ids[place] = completion_ids

    def finish(self) -> list[Graded]:
        return [
            Graded(rewards=tuple(self.task.rewards(ids)), scores={})
            for _, ids in sorted(self.ids.items())
        ]


@dataclass
class GivenGrading:
    task: Task

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"r{number}" for number in range(len(self.task.weights)))

    @property
    def weights(self) -> tuple[float, ...]:
        return self.task.weights

    def begin(self, *_: Untyped, **__: Untyped) -> GivenRound:
        return GivenRound(self.task)

    def close(self) -> None:
        pass


def train_plan(steps: int, learning_rate: float) -> TrainPlan:
    return TrainPlan(
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=0.0,
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=2,
        total_steps=steps,
        logging_steps=1,
        eval_steps=None,
        save_steps=None,
    )


def grpo_plan(**recipe: Untyped) -> GRPOPlan:
    given = GRPORecipe(
        num_generations=GENERATIONS, prompts_per_step=2, max_completion_length=LONGEST, **recipe
    )
    return GRPOPlan(eval_samples=1, **given.model_dump())


def ours(
    model: Untyped,
    tokenizer: Untyped,
    task: Task,
    folder: Path,
    *,
    steps: int = 1,
    learning_rate: float = 1e-2,
    shared_prompt: bool = True,
    importance_sampling: Mode | None = None,
    **recipe: Untyped,
) -> GRPOTrainer:
    """Make our trainer for a copy of `model`."""
    model, plan, train = (
        copy.deepcopy(model),
        grpo_plan(**recipe),
        train_plan(steps, learning_rate),
    )
    rows = [
        PromptRow(number=number, prompt_ids=ids, item={}, text=_text(ids))
        for number, ids in enumerate(task.completions)
    ]
    rollouts = RolloutRunner(
        GivenEngine(task),  # type: ignore[arg-type]  # a stand-in with what RolloutRunner asks of an engine
        tokenizer,
        Prompts(rows=rows, validation=None),
        GivenGrading(task),  # type: ignore[arg-type]  # a stand-in with what RolloutRunner asks of a grading
        plan,
        stop_token_ids=frozenset({EOS}),
        seed=0,
        clock=WallClock(),
        kept=KeptRollouts(folder / "rollouts.jsonl", "test"),
        write_samples=lambda step, samples: None,
        record_figures=lambda figures: None,
        log_info=lambda text: None,
        log_warning=lambda text: None,
        stop_requested=lambda: False,
    )
    trainer = GRPOTrainer(
        model=model,
        args=grpo_config(folder, train, plan, seed=0),
        plan=plan,
        runner=rollouts,
        shared_prompt=shared_prompt,
        processing_class=tokenizer,
        save=lambda step: None,
        importance_sampling=importance_sampling,
        optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": learning_rate, **ADAM}),
    )
    patch(trainer.model)
    if trainer.ref_model is not None:
        patch(trainer.ref_model)
    return trainer


class StockTrainer(trl.GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
    """TRL's trainer, with given completions."""

    task: Task

    def _tokenize_prompts(self, prompts: list[str]) -> Untyped:
        return [[int(one) for one in prompt.split()] for prompt in prompts], None, {}

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Untyped, **__: Untyped) -> Any:
        counts: dict[tuple[int, ...], int] = {}
        found = []
        for ids in map(tuple, prompt_ids):
            found.append(self.task.completions[ids][counts.get(ids, 0)])
            counts[ids] = counts.get(ids, 0) + 1
        log_probs = self.task.log_probs
        return found, None if log_probs is None else [log_probs(ids) for ids in found]


def _zeros(ids: Sequence[int]) -> list[float]:
    return [0.0] * len(ids)


def stock(
    model: Untyped,
    tokenizer: Untyped,
    task: Task,
    folder: Path,
    *,
    steps: int = 1,
    learning_rate: float = 1e-2,
    **recipe: Untyped,
) -> StockTrainer:
    plan, train = grpo_plan(**recipe), train_plan(steps, learning_rate)
    args = grpo_config(folder, train, plan, seed=0)
    args.beta = plan.beta
    args.reward_weights = list(task.weights)

    def column(number: int) -> Untyped:
        def reward(completion_ids: list[list[int]], **_: Untyped) -> list[float | None]:
            return [task.rewards(ids)[number] for ids in completion_ids]

        reward.__name__ = f"r{number}"
        return reward

    trainer = StockTrainer(
        model=copy.deepcopy(model),
        reward_funcs=[column(number) for number in range(len(task.weights))],
        args=args,
        train_dataset=datasets.Dataset.from_dict(
            {"prompt": [_text(ids) for ids in task.completions]}
        ),
        processing_class=tokenizer,
    )
    trainer.task = task
    trainer.create_optimizer = lambda *_: _with(trainer, learning_rate)
    return trainer


def _with(trainer: StockTrainer, learning_rate: float) -> torch.optim.Optimizer:
    trained = [one for one in trainer.model.parameters() if one.requires_grad]
    trainer.optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0, **ADAM)
    found: torch.optim.Optimizer = trainer.optimizer
    return found


def _text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def train(trainer: Untyped) -> list[float]:
    """Unrounded loss of each step."""
    step, found = trainer.training_step, []

    def training_step(*given: Untyped, **named: Untyped) -> torch.Tensor:
        loss: torch.Tensor = step(*given, **named)
        found.append(float(loss))
        return loss

    trainer.training_step = training_step
    with getattr(trainer, "runner", nullcontext()):
        trainer.train()
    return found


def trained(trainer: Untyped) -> dict[str, torch.Tensor]:
    return {
        name: one.detach().clone()
        for name, one in trainer.model.named_parameters()
        if one.requires_grad
    }
