"""Reinforcement tuning by GRPO: TRL's GRPOTrainer, its completions from our engine and its
log-probabilities from our kernels. Advantages and losses are TRL's own code.

A step generates a group of completions for each of its prompts, grades them, and trains on them
once or several times. Rows keep their group from the rollout to the loss.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Literal

import datasets
import torch
import trl
from peft.tuners.tuners_utils import BaseTunerLayer

from tunesmith_schema import PhaseName
from tunesmith_worker.engine.memory.recompute import no_layer_recomputes
from tunesmith_worker.engine.patches.trl_compat import add_reference_head
from tunesmith_worker.engine.random_state import random_state
from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan

from .config import reward_column
from .groups import ROWS, GroupOrder, RowOfGroup
from .grpo_metrics import StepFigures, renamed, round_figures
from .grpo_step import SHARE, GroupSteps, Inputs
from .nan_guard import NanGuard, TakenStep
from .nan_rows import explain_completions
from .rollouts import Drawn, Rollouts
from .safe_step import Guarded, Resuming

Untyped = Any  # Any: transformers and TRL are not typed
_BUFFER = "rollouts."
"""Before the names of a resume point's tensors that are completions to be trained on once more."""


class GRPOTrainer(GroupSteps, Guarded, Resuming, trl.GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
    TIMED_STEP = "train_on"
    """The method that is one optimiser step's forward and backward."""

    def __init__(
        self,
        *,
        plan: GRPOPlan,
        rollouts: Rollouts,
        shared_prompt: bool | Literal["auto"],
        least_parts: int = 1,
        save: Callable[[int], None],
        optimizer_cls_and_kwargs: Untyped,
        embedding_rate: float | None = None,
        **given: Untyped,
    ) -> None:
        """`shared_prompt`, `least_parts`: as `stepping` takes them. `optimizer_cls_and_kwargs`: as
        the Trainer takes it. `save`, `embedding_rate`: as `Guarded.guarded` takes them.
        `given["args"]` has no `beta`: TRL would copy a fresh adapter, or load the model once more,
        for its reference."""
        model, texts = given["model"], [row.text for row in rollouts.prompts.rows]
        reference = None
        if plan.beta and not hasattr(model, "peft_config"):
            reference = copy.deepcopy(model).eval().requires_grad_(False)
        super().__init__(
            reward_funcs=[reward_column(name) for name in rollouts.grading.columns],
            train_dataset=datasets.Dataset.from_dict({"prompt": texts, "row": range(len(texts))}),
            **given,
        )
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs  # TRL does not pass it on
        self.beta = self.args.beta = plan.beta
        if reference is not None:
            self.ref_model = add_reference_head(reference, self.temperature)
        self.reward_weights = torch.tensor(rollouts.grading.weights, dtype=torch.float32)
        prompts = [row.prompt_ids for row in rollouts.prompts.rows]
        self.stepping(plan, prompts, shared_prompt, least_parts)
        self._rollouts = rollouts
        self.step_loss = torch.zeros((), device=self.args.device)
        """Of the last step."""
        self._buffer: Inputs | None = None
        """The completions that are trained on, until the last of `num_iterations` steps."""
        self._rows: list[RowOfGroup] | None = None
        self._trained = self._seen = 0
        self._gaps: list[float] = []
        """Since they were last told: mean |log-prob when drawn - in training| of each step."""
        guard = NanGuard(self.args.device, lambda step: explain_completions(self, step))
        self.guarded(guard, save=save, embedding_rate=embedding_rate)

    @property
    def trained_tokens(self) -> int:
        """Completion tokens that the loss is a mean over, so far: those of groups without a spread
        of rewards, whose gradient is 0, are among them."""
        return self._trained

    @property
    def input_tokens(self) -> int:
        """That went through training passes so far."""
        return self._seen

    def _get_train_sampler(self, dataset: Untyped = None) -> GroupOrder:
        return GroupOrder(
            len(self.train_dataset),
            prompts_per_step=self.plan.prompts_per_step,
            num_generations=self.plan.num_generations,
            num_iterations=self.plan.num_iterations,
            seed=self.args.seed,
        )

    def training_step(
        self, model: Untyped, inputs: list[dict[str, Untyped]], num_items_in_batch: Untyped = None
    ) -> torch.Tensor:
        """One optimiser step: rollouts where they are due, then forward and backward."""
        model.train()  # TRL tells training from evaluation by that
        batch = self._due_batch(inputs)
        step = partial(self.train_on, model, batch)
        loss: torch.Tensor = step() if self.memory is None else self.memory.run(step)
        self._trained += int(batch["completion_mask"].sum())
        self._seen += sum(batch["lengths"])
        if (self.state.global_step + 1) % self.plan.num_iterations == 0:
            self._buffer = None
        return loss

    def _due_batch(self, inputs: list[dict[str, Untyped]]) -> Inputs:
        if self._buffer is None:
            self._buffer = self._generate_and_score_completions(inputs)
        return self._buffer

    def train_on(self, model: Untyped, batch: Inputs) -> torch.Tensor:
        """Forward and backward of a step's completions, part by part."""
        self.guard.begins(
            TakenStep(
                number=self.state.global_step + 1,
                rows=batch,
                layout=None,
                labelled=None,
                random_state=random_state(),
            )
        )
        self.figures = StepFigures()
        parts = self.micro_batches(batch)
        self.current_gradient_accumulation_steps = 1  # a part's loss has its share already
        loss = torch.zeros((), device=self.args.device)
        for part in parts:
            if self.memory is not None:
                self.memory.comes(part)
            loss = loss + super().training_step(model, part, None)
        if "old_per_token_logps" not in batch:
            self._gaps.append(self.figures.gap)
            if self.plan.num_iterations > 1:
                batch["old_per_token_logps"] = self.figures.log_probs()
        self.step_loss = loss
        return loss

    def _prepare_inputs(self, inputs: Inputs) -> Inputs:
        return inputs

    def compute_loss(
        self,
        model: Untyped,
        inputs: Inputs,
        return_outputs: bool = False,
        num_items_in_batch: Untyped = None,
    ) -> torch.Tensor:
        rows = self.teaching_rows(inputs)
        with self._scoring(rows):
            loss: torch.Tensor = super().compute_loss(model, inputs)
        if not loss.requires_grad:  # no row teaches anything: a gradient of zero, as TRL's would be
            trained = (one for one in self.model.parameters() if one.requires_grad)
            loss = loss + sum((one.sum() * 0.0 for one in trained), loss.new_zeros(()))
        share: float = inputs[SHARE]
        return loss * share

    @contextmanager
    def _scoring(self, rows: list[RowOfGroup]) -> Iterator[None]:
        before, self._rows = self._rows, rows
        try:
            yield
        finally:
            self._rows = before

    def _compute_loss(self, model: Untyped, inputs: Inputs) -> torch.Tensor:
        self._inputs = inputs
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
        finally:
            del self._inputs
        return loss

    _inputs: Inputs
    """Of the loss that is being computed."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Untyped,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **_: Untyped,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Of every completion; [B, logits_to_keep]. Nothing for the log-probs of the policy that
        drew: the first training forward gives them, before any update."""
        assert self._rows is not None, "the rows are said beforehand"
        if not torch.is_grad_enabled():
            return self._without_gradient(model, logits_to_keep), None, None
        scores = self.scores(model, self._rows, entropy=True)
        assert scores.entropy is not None, "asked for"
        log_probs = _widened(scores.log_probs, logits_to_keep)
        entropy = _widened(scores.entropy, logits_to_keep)
        return *self.figures.scored(self._rows, log_probs, entropy, self._inputs), None

    def _without_gradient(self, model: Untyped, width: int) -> torch.Tensor | None:
        """The reference's, and None of the policy that drew: TRL asks for that one too where
        completions are trained on several times."""
        if self.ref_model is None:
            of_reference = _adapter_is_off(self.accelerator.unwrap_model(self.model))
        else:
            of_reference = model is self.ref_model
        if not of_reference:
            return None
        assert self._rows is not None, "the rows are said beforehand"
        with self._rollouts.clock.during(PhaseName.LOG_PROBS):
            scores = self.scores(model, self._rows)
        return _widened(scores.log_probs, width)

    def _generate_and_score_completions(self, inputs: list[dict[str, Untyped]]) -> Inputs:
        """TRL's, with what belongs to a row kept beside the tensors."""
        rows = [self._rollouts.prompts.rows[int(one["row"])] for one in inputs]
        self._drawn = self._rollouts.draw(rows, "train", self.state)
        with self._scoring([]), no_layer_recomputes(self.model):
            batch: Inputs = super()._generate_and_score_completions(inputs)
            assert self._rows is not None, "said a moment ago"
            there = batch["completion_mask"].any(1).tolist()
            batch[ROWS] = [
                row if is_there else replace(row, left_out=True)
                for row, is_there in zip(self._rows, there, strict=True)
            ]
        measured = self._metrics["train"]
        # TRL's is of standard deviations, and a group without rewards has none.
        counts = self._rollouts.level(self._drawn, batch["advantages"])
        measured["frac_reward_zero_std"][-1] = counts.equal_groups / max(counts.groups, 1)
        measured["ungraded_share"].append(counts.ungraded / len(rows))
        batch["index"] = torch.arange(len(rows), device=self.args.device)
        batch["lengths"] = self.lengths_of(batch[ROWS])
        advantages = batch["advantages"].tolist()
        self._rollouts.keep(self._drawn, advantages)
        for name, scores in self._rollouts.scores(self._drawn).items():
            measured[f"scores/{name}"].append(fmean(scores))
        for name, value in self._drawn.round.metrics.items():
            measured[f"logged/{name}"].append(value)
        self._rollouts.tell(
            round_figures(
                batch[ROWS],
                self._drawn.completions,
                rewards=counts,
                num_iterations=self.plan.num_iterations,
                drawing=self._rollouts.engine.figures,
                weights=self._rollouts.weights,
                layout=self.layout_of(batch[ROWS]),
            )
        )
        return batch

    _drawn: Drawn
    """Of the step whose completions are being made."""

    def _tokenize_prompts(self, prompts: list[Untyped]) -> tuple[list[list[int]], None, Untyped]:
        return [list(row.prompt_ids) for row in self._drawn.prompts], None, {}

    def _generate_single_turn(self, *_: Untyped, **__: Untyped) -> tuple[Untyped, Untyped]:
        drawn = self._drawn
        self._rollouts.generate(drawn, resumed=drawn.step == self.steps_before)
        pairs = zip(drawn.prompts, drawn.completions, strict=True)
        self._rows = [RowOfGroup(one.prompt_ids, tuple(done.token_ids)) for one, done in pairs]
        completions = drawn.completions
        return [one.token_ids for one in completions], [one.policy_logprobs for one in completions]

    def _calculate_rewards(self, *_: Untyped) -> torch.Tensor:
        rewards = self._rollouts.grade(self._drawn)
        return torch.tensor(rewards, dtype=torch.float32, device=self.args.device)

    def evaluate(self, *_: Untyped, **__: Untyped) -> dict[str, float]:
        """The mean reward of the validation file's prompts, drawn for as in training."""
        prompts = self._rollouts.prompts.validation
        assert prompts is not None, "there is nothing to evaluate on"
        wanted = [row for row in prompts for _ in range(self.plan.eval_samples)]
        drawn = self._rollouts.draw(wanted, "valid", self.state)
        self._rollouts.generate(drawn)
        rewards = torch.tensor(self._rollouts.grade(drawn))
        weighted = (rewards * self.reward_weights).nansum(1)[~rewards.isnan().all(1)]
        logs = {"eval_reward": float(weighted.mean())}
        was_training = self.model.training
        self.model.eval()  # TRL tells by that which figures are gathered
        self.log(dict(logs))
        self.model.train(was_training)
        self.control = self.callback_handler.on_evaluate(
            self.args,
            self.state,
            self.control,  # type: ignore[has-type]  # the Trainer's, which is untyped
            logs,
        )
        return logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.before_logging(logs)
        if "loss" in logs:
            gathered = renamed(self._metrics["train"])
            gathered["rollout_gap"] = [*self._gaps]
            self._gaps.clear()
            self._metrics["train"].clear()
            self._metrics["train"].update(gathered)
            logs["num_tokens"] = float(self.input_tokens)
        super().log(logs, start_time)

    def counters(self, mode: str = "train") -> Untyped:
        """What has been counted so far: a step may have to be repeated."""
        return {name: list(values) for name, values in self._metrics[mode].items()}

    def restore_counters(self, counters: Untyped) -> None:
        self._metrics["train"].clear()
        self._metrics["train"].update(counters)

    def counted(self) -> tuple[dict[str, Untyped], dict[str, torch.Tensor]]:
        plain, tensors = super().counted()
        plain |= {
            "metrics": self.counters(),
            "gaps": self._gaps,
            "tokens": [self._trained, self._seen],
            "ungraded_steps": self._rollouts.grading.ungraded_steps,
            "spreads": self._rollouts.spreads,
        }
        if self._buffer is None:
            return plain, tensors
        plain["rows"] = [
            [row.prompt_ids, row.completion_ids, row.left_out] for row in self._buffer[ROWS]
        ]
        buffered = {
            _BUFFER + name: one
            for name, one in self._buffer.items()
            if isinstance(one, torch.Tensor)
        }
        return plain, tensors | buffered

    def restore_counted(self, plain: dict[str, Untyped], tensors: dict[str, torch.Tensor]) -> None:
        super().restore_counted(plain, tensors)
        self.restore_counters(plain["metrics"])
        self._gaps, (self._trained, self._seen) = plain["gaps"], plain["tokens"]
        if self._forked:  # drawn and scored by another recipe or grader
            return
        # A point of an earlier build has neither.
        self._rollouts.grading.ungraded_steps = plain.get("ungraded_steps", 0)
        self._rollouts.spreads = plain.get("spreads", 1)
        if "rows" not in plain:
            return
        rows = [RowOfGroup(tuple(one), tuple(other), out) for one, other, out in plain["rows"]]
        self._buffer = {ROWS: rows, "lengths": self.lengths_of(rows)} | {
            name.removeprefix(_BUFFER): one.to(self.args.device)
            for name, one in tensors.items()
            if name.startswith(_BUFFER)
        }


def _widened(values: torch.Tensor, width: int) -> torch.Tensor:
    """[B, C] with zeros up to [B, width]."""
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))


def _adapter_is_off(model: Untyped) -> bool:
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            return bool(module.disable_adapters)
    return False
