"""GRPO reinforcement tuning: TRL's GRPOTrainer with completions from our rollout engine and
log-probabilities from our kernels. TRL computes advantages and losses.

A step generates a group of completions for each of its prompts, grades them, and trains on them
once or several times.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
from .engine_mismatch import RATIO, MismatchCorrection, Mode
from .groups import ROWS, GroupOrder, GroupRow
from .grpo_metrics import StepScores, rename_metrics, round_figures
from .grpo_step import SHARE, GRPOSteps, Inputs
from .nan_guard import NanGuard, StepRecord
from .nan_rows import explain_completions
from .reference import AdapterReference, no_bias_warning
from .rollouts import Rollout, RolloutRunner
from .safe_step import Resumable, SafeStep

Untyped = Any  # Any: transformers and TRL are not typed
_BUFFER = "rollouts."
"""A resume point stores the completions for later steps in tensors whose names begin with this
prefix."""


class GRPOTrainer(GRPOSteps, SafeStep, Resumable, trl.GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
    TIMED_STEP = "train_on"
    """Name of the method that runs the forward and backward passes of one optimiser step."""

    def __init__(
        self,
        *,
        plan: GRPOPlan,
        runner: RolloutRunner,
        shared_prompt: bool | Literal["auto"],
        least_parts: int = 1,
        save: Callable[[int], None],
        importance_sampling: Mode | None = None,
        optimizer_cls_and_kwargs: Untyped,
        embedding_rate: float | None = None,
        **trl_arguments: Untyped,
    ) -> None:
        """`shared_prompt`, `least_parts`: see `init_grpo_steps`. `importance_sampling`: see
        engine_mismatch.py. `optimizer_cls_and_kwargs`: see transformers.Trainer. `save`,
        `embedding_rate`: see `init_safe_step`.
        `trl_arguments["args"]` must not set `beta`: TRL would copy the adapter or load the model
        again as reference."""
        model, texts = trl_arguments["model"], [row.text for row in runner.prompts.rows]
        reference = None
        if plan.beta and not hasattr(model, "peft_config"):
            reference = copy.deepcopy(model).eval().requires_grad_(False)
        super().__init__(
            reward_funcs=[reward_column(name) for name in runner.grading.columns],
            train_dataset=datasets.Dataset.from_dict({"prompt": texts, "row": range(len(texts))}),
            **trl_arguments,
        )
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs  # TRL drops this argument
        self.beta = self.args.beta = plan.beta
        has_router_loss: bool = self.aux_loss_enabled  # type: ignore[has-type]  # TRL is untyped
        self.left_out_router_loss = self.router_aux_loss_coef if has_router_loss else 0.0
        """Coefficient of the load-balancing loss of a mixture of experts. The load-balancing loss
        is left out, because it needs all rows, but our forward pass skips rows without a
        gradient."""
        self.aux_loss_enabled = False
        if reference is not None:
            self.ref_model = add_reference_head(reference, self.temperature)
        self.reward_weights = torch.tensor(runner.grading.weights, dtype=torch.float32)
        shared = plan.beta and self.ref_model is None
        self._reference = AdapterReference(self.model) if shared else None
        prompts = [row.prompt_ids for row in runner.prompts.rows]
        self.init_grpo_steps(plan, prompts, shared_prompt, least_parts)
        self.runner = runner
        self.correction = MismatchCorrection(importance_sampling) if importance_sampling else None
        self.step_loss = torch.zeros((), device=self.args.device)
        """Loss of the last step."""
        self._buffer: Inputs | None = None
        """Completions that the trainer trains on for `num_iterations` steps."""
        self._rows: list[GroupRow] | None = None
        self._trained_tokens = self._input_tokens = 0
        self._gaps: list[float] = []
        """Mean |sampling log-prob - training log-prob| of each step since the last log."""
        guard = NanGuard(self.args.device, lambda step: explain_completions(self, step))
        self.init_safe_step(guard, save=save, embedding_rate=embedding_rate)

    @property
    def trained_tokens(self) -> int:
        """Number of completion tokens trained so far, including groups with equal rewards, whose
        gradient is 0."""
        return self._trained_tokens

    @property
    def input_tokens(self) -> int:
        """Number of tokens in training forward passes so far."""
        return self._input_tokens

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
        """Run one optimiser step: generate completions if due, then run forward and backward."""
        model.train()  # TRL reads the mode from this flag
        batch = self._get_batch(inputs)
        step = partial(self.train_on, model, batch)
        loss: torch.Tensor = step() if self.memory is None else self.memory.run(step)
        self._trained_tokens += int(batch["completion_mask"].sum())
        self._input_tokens += sum(batch["lengths"])
        if (self.state.global_step + 1) % self.plan.num_iterations == 0:
            self._buffer = None
        return loss

    def _get_batch(self, inputs: list[dict[str, Untyped]]) -> Inputs:
        if self._buffer is None:
            self._buffer = self._generate_and_score_completions(inputs)
        return self._buffer

    def train_on(self, model: Untyped, batch: Inputs) -> torch.Tensor:
        """Run forward and backward on a step's completions, micro-batch by micro-batch."""
        self.guard.start_step(
            StepRecord(
                number=self.state.global_step + 1,
                rows=batch,
                layout=None,
                labelled=None,
                random_state=random_state(),
            )
        )
        self.figures = StepScores()
        if self.correction is not None:
            self.correction.start_step()
        parts = self.micro_batches(batch)
        self.current_gradient_accumulation_steps = 1  # the loss of a part is already weighted
        loss = torch.zeros((), device=self.args.device)
        for part in parts:
            if self.memory is not None:
                self.memory.observe(part)
            loss = loss + super().training_step(model, part, None)
        if "old_per_token_logps" not in batch:
            self._gaps.append(self.measure_gap(batch))
            for name, value in self.correction.metrics().items() if self.correction else ():
                self._metrics["train"][name].append(value)
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
        rows = self.rows_with_gradient(inputs)
        with self._scoring(rows):
            loss: torch.Tensor = super().compute_loss(model, inputs)
        if not loss.requires_grad:  # if no row has a gradient, all gradients become 0, as in TRL
            trained = (p for p in self.model.parameters() if p.requires_grad)
            loss = loss + sum((p.sum() * 0.0 for p in trained), loss.new_zeros(()))
        share: float = inputs[SHARE]
        return loss * share

    @contextmanager
    def _scoring(self, rows: list[GroupRow]) -> Iterator[None]:
        before, self._rows = self._rows, rows
        try:
            yield
        finally:
            self._rows = before

    def _compute_loss(self, model: Untyped, inputs: Inputs) -> torch.Tensor:
        self._inputs = inputs
        self.use_vllm = self.correction is not None  # TRL then multiplies the loss by the ratio
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
        finally:
            self.use_vllm = False
            del self._inputs
        return loss

    _inputs: Inputs
    """Inputs of the loss that is being computed."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Untyped,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **_: Untyped,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Return log-probs and entropies of the completions, each [B, logits_to_keep].

        If TRL requests log-probs of the sampling policy, return None: the first training forward
        pass computes these log-probs before any update."""
        assert self._rows is not None, "set by _scoring"
        if not torch.is_grad_enabled():
            return self._without_gradient(model, logits_to_keep), None, None
        scores = self.scores(model, self._rows, entropy=True)
        assert scores.entropy is not None, "requested by entropy=True"
        log_probs = _pad_columns(scores.log_probs, logits_to_keep)
        entropy = _pad_columns(scores.entropy, logits_to_keep)
        log_probs, entropy = self.figures.add(self._rows, log_probs, entropy, self._inputs)
        if self.correction is not None:
            self._inputs[RATIO] = self.correction.ratio(self._rows, log_probs, self._inputs)
        return log_probs, entropy, None

    def _without_gradient(self, model: Untyped, width: int) -> torch.Tensor | None:
        """Return the reference model's log-probs; return None if TRL requests log-probs of the
        sampling policy. TRL makes this request if `num_iterations` is above 1."""
        if self.ref_model is None:
            is_reference = _adapter_is_disabled(self.accelerator.unwrap_model(self.model))
        else:
            is_reference = model is self.ref_model
        if not is_reference:
            return None
        assert self._rows is not None, "set by _scoring"
        reference = nullcontext() if self._reference is None else self._reference.running()
        with self.runner.clock.during(PhaseName.LOG_PROBS), reference:
            scores = self.scores(model, self._rows)
        return _pad_columns(scores.log_probs, width)

    def _generate_and_score_completions(self, inputs: list[dict[str, Untyped]]) -> Inputs:
        rows = [self.runner.prompts.rows[int(example["row"])] for example in inputs]
        self.rollout = self.runner.start(rows, "train", self.state)
        with self._scoring([]), no_layer_recomputes(self.model), no_bias_warning():
            batch: Inputs = super()._generate_and_score_completions(inputs)
            assert self._rows is not None, "set by _generate_single_turn"
            kept = batch["completion_mask"].any(1).tolist()
            batch[ROWS] = [
                row if is_kept else replace(row, skip=True)
                for row, is_kept in zip(self._rows, kept, strict=True)
            ]
        metrics = self._metrics["train"]
        # TRL computes this metric from standard deviations, which ungraded groups lack.
        counts = self.runner.zero_equal_groups(self.rollout, batch["advantages"])
        metrics["frac_reward_zero_std"][-1] = counts.equal_groups / max(counts.groups, 1)
        metrics["ungraded_share"].append(counts.ungraded / len(rows))
        batch["index"] = torch.arange(len(rows), device=self.args.device)
        batch["lengths"] = self.segment_lengths(batch[ROWS])
        advantages = batch["advantages"].tolist()
        self.runner.store(self.rollout, advantages)
        for name, scores in self.runner.scores(self.rollout).items():
            metrics[f"scores/{name}"].append(fmean(scores))
        for name, value in self.rollout.round.metrics.items():
            metrics[f"logged/{name}"].append(value)
        self.runner.record_figures(
            round_figures(
                batch[ROWS],
                self.rollout.completions,
                rewards=counts,
                num_iterations=self.plan.num_iterations,
                engine=self.runner.engine.figures,
                engine_name=self.runner.engine.name,
                weights=self.runner.engine.weights,
                layout=self.layout_of(batch[ROWS]),
            )
        )
        return batch

    rollout: Rollout
    """Rollout of the current step."""

    def _tokenize_prompts(self, prompts: list[Untyped]) -> tuple[list[list[int]], None, Untyped]:
        return [list(row.prompt_ids) for row in self.rollout.prompts], None, {}

    def _generate_single_turn(self, *_: Untyped, **__: Untyped) -> tuple[Untyped, Untyped]:
        rollout = self.rollout
        self.runner.generate(rollout, resumed=rollout.step == self.steps_before)
        pairs = zip(rollout.prompts, rollout.completions, strict=True)
        self._rows = [GroupRow(row.prompt_ids, tuple(done.token_ids)) for row, done in pairs]
        completions = rollout.completions
        return [c.token_ids for c in completions], [c.policy_logprobs for c in completions]

    def _calculate_rewards(self, *_: Untyped) -> torch.Tensor:
        rewards = self.runner.grade(self.rollout)
        return torch.tensor(rewards, dtype=torch.float32, device=self.args.device)

    def evaluate(self, *_: Untyped, **__: Untyped) -> dict[str, float]:
        """Generate completions for the validation prompts as in training, and return the mean
        reward."""
        prompts = self.runner.prompts.validation
        assert prompts is not None, "evaluation without a validation file"
        repeated = [row for row in prompts for _ in range(self.plan.eval_samples)]
        rollout = self.runner.start(repeated, "valid", self.state)
        self.runner.generate(rollout)
        rewards = torch.tensor(self.runner.grade(rollout))
        weighted = (rewards * self.reward_weights).nansum(1)[~rewards.isnan().all(1)]
        logs = {"eval_reward": float(weighted.mean())}
        was_training = self.model.training
        self.model.eval()  # TRL reads from this flag which metrics to log
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
            gathered = rename_metrics(self._metrics["train"])
            gathered["rollout_gap"] = [*self._gaps]
            self._gaps.clear()
            self._metrics["train"].clear()
            self._metrics["train"].update(gathered)
            logs["num_tokens"] = float(self.input_tokens)
        super().log(logs, start_time)

    def counters(self, mode: str = "train") -> Untyped:
        """Return a copy of the metrics, which `restore_counters` restores if a step is repeated."""
        return {name: list(values) for name, values in self._metrics[mode].items()}

    def restore_counters(self, counters: Untyped) -> None:
        self._metrics["train"].clear()
        self._metrics["train"].update(counters)

    def state_dict(self) -> tuple[dict[str, Untyped], dict[str, torch.Tensor]]:
        plain, tensors = super().state_dict()
        plain |= {
            "metrics": self.counters(),
            "gaps": self._gaps,
            "tokens": [self._trained_tokens, self._input_tokens],
            "ungraded_steps": self.runner.grading.ungraded_steps,
            "spreads": self.runner.spreads,
        }
        if self._buffer is None:
            return plain, tensors
        plain["rows"] = [
            [row.prompt_ids, row.completion_ids, row.skip] for row in self._buffer[ROWS]
        ]
        buffered = {
            _BUFFER + name: tensor
            for name, tensor in self._buffer.items()
            if isinstance(tensor, torch.Tensor)
        }
        return plain, tensors | buffered

    def load_state_dict(self, plain: dict[str, Untyped], tensors: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(plain, tensors)
        self.restore_counters(plain["metrics"])
        self._gaps, (self._trained_tokens, self._input_tokens) = plain["gaps"], plain["tokens"]
        if self._forked:  # a fork may have another recipe or grader
            return
        # Resume points of earlier versions lack `ungraded_steps` and `spreads`.
        self.runner.grading.ungraded_steps = plain.get("ungraded_steps", 0)
        self.runner.spreads = plain.get("spreads", 1)
        if "rows" not in plain:
            return
        rows = [GroupRow(tuple(ids), tuple(tokens), skip) for ids, tokens, skip in plain["rows"]]
        self._buffer = {ROWS: rows, "lengths": self.segment_lengths(rows)} | {
            name.removeprefix(_BUFFER): tensor.to(self.args.device)
            for name, tensor in tensors.items()
            if name.startswith(_BUFFER)
        }


def _pad_columns(values: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))


def _adapter_is_disabled(model: Untyped) -> bool:
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            return bool(module.disable_adapters)
    return False
