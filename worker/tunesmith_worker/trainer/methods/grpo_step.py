"""Computation of a reinforcement step: layout, micro-batches (called parts), and log-probabilities.

The memory plan and the self-check use the same methods as the loss.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, Literal

import torch
import transformers

from tunesmith_worker.engine.memory.retry import StepRetry
from tunesmith_worker.engine.memory.shapes import MicroBatch
from tunesmith_worker.engine.patches.attention_interface import reads_segments
from tunesmith_worker.trainer.auto.layout_choice import Layout
from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan

from .completion_scores import CompletionScores, score_completions
from .groups import ROWS, GroupLayout, GroupRow, choose_layout, sizes_of
from .grpo_metrics import StepScores
from .train_noise import differs_in_training, gap_without_noise

Untyped = Any  # Any: transformers is not typed
Inputs = dict[str, Any]  # Any: tensors as TRL names them, and `rows`
SHARE = "share"
"""Key under which a part stores its weight in the step's loss."""
_BY_ROWS = ("grpo", "sapo", "luspo", "dr_grpo")
"""Loss types that are means over rows.

The loss type `bnpo` is a mean over tokens. The other loss types are sums over tokens, divided by a
number that is the same for all parts of a step.
"""
PROBED = 4096
"""Maximum tokens in the trial batch with which memory is measured, unless a single row has more."""


class GRPOSteps(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Mixin that must come before TRL's GRPOTrainer in the list of base classes."""

    def init_grpo_steps(
        self,
        plan: GRPOPlan,
        prompts: Sequence[tuple[int, ...]],
        shared_prompt: bool | Literal["auto"],
        least_parts: int,
    ) -> None:
        """Call this method in the trainer's constructor. `prompts`: token ids of all prompts.
        `shared_prompt`: the value of recipe.rollout.shared_prompt. `least_parts`: minimum forward
        passes per step."""
        self._least_parts = least_parts
        self.plan, self._prompts, self._shared_prompt = plan, prompts, shared_prompt
        self.memory: StepRetry | None = None
        """Handler of out-of-memory errors in training steps; None until memory is planned."""
        self.figures = StepScores()
        """Scores of the last step."""
        self._has_noise = differs_in_training(self.model)

    zero_gradient_is_valid = True
    """True if a step may have a zero gradient and a loss of 0 without being faulty."""

    def labelled_tokens(self, rows: Inputs) -> int:
        """Return the number of completion tokens with a gradient."""
        with_gradient = self.rows_with_gradient(rows)
        return sum(len(row.completion_ids) for row in with_gradient if row.scored)

    def predicting_tokens(self, rows: Inputs) -> torch.Tensor:
        """Return the ids of the tokens that directly precede a completion token with a gradient."""
        ids = {
            token
            for row in self.rows_with_gradient(rows)
            if row.scored
            for token in (row.prompt_ids[-1], *row.completion_ids[:-1])
        }
        return torch.tensor(sorted(ids), dtype=torch.int64)

    def micro_batches(self, step: Inputs, layout: Layout | None = None) -> list[Inputs]:
        """Split a step into as many parts as memory requires. `layout` is ignored."""
        parts = 1 if self.memory is None else self.memory.policy.parts
        return in_parts(step, parts * self._least_parts, self.loss_type)

    def longest_step(self) -> Inputs:
        """Return a step with the longest prompts and completions of maximum length."""
        plan = self.plan
        longest = heapq.nlargest(plan.prompts_per_step, self._prompts, key=len)
        rows = [
            GroupRow(ids, tuple(islice(cycle(ids), plan.max_completion_length)))
            for ids in longest
            for _ in range(plan.num_generations)
        ]
        return {ROWS: rows, "completion_mask": torch.ones(len(rows), 1)}

    def describe(self, batch: Inputs, *, count_labels: bool = False) -> MicroBatch:
        """Return the numbers of rows and tokens of a micro-batch. `count_labels` has no effect:
        this method always counts labels."""
        sizes = sizes_of(batch[ROWS])
        layout = self.layout_of(batch[ROWS])
        longest = max((size.prompt + max(size.completions) for size in sizes), default=1)
        count = sum(len(size.completions) for size in sizes)
        padded = not reads_segments(_causal(self.model))
        tokens = count * longest if padded else sum(size.tokens(layout) for size in sizes)
        return MicroBatch(
            rows=max(1, count),
            longest=longest,
            tokens=max(1, tokens),
            labelled=max(1, sum(sum(size.completions) for size in sizes)),
            padded=padded,
        )

    def segment_lengths(self, rows: Sequence[GroupRow]) -> tuple[int, ...]:
        """Return the length in tokens of each segment in a training forward pass.

        A segment is a shared prompt, a completion after a shared prompt, or a completion with its
        own prompt."""
        lengths: list[int] = []
        shared = self.layout_of(rows) == "shared" and reads_segments(_causal(self.model))
        for size in sizes_of(rows):
            own = [tokens - 1 for tokens in size.completions]
            if shared:
                lengths += [size.prompt, *own]
            else:
                lengths += [size.prompt + tokens for tokens in own]
        return tuple(tokens for tokens in lengths if tokens)

    def probe_batch(self, batch: Inputs) -> Inputs:
        """Return the first rows of a batch, with about PROBED tokens in total.

        A few rows are enough, because rows of one batch need similar memory."""
        rows: list[GroupRow] = batch[ROWS]
        count = len(rows)
        while count > 1 and self.describe({ROWS: rows[:count]}).tokens > PROBED:
            count = (count + 1) // 2
        return batch if count == len(rows) else {ROWS: rows[:count]}

    def probe_loss(self, batch: Inputs, labelled: int) -> torch.Tensor:
        """Return a loss for the trial batch with which memory is measured, without updating
        metrics."""
        scores = self.scores(self.model, batch[ROWS], entropy=True)
        return -scores.log_probs.sum() / labelled

    def score(
        self, rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Score (prompt, completion) pairs with the training forward pass, for the self-check.

        Return log-probabilities and entropies."""
        group_rows = [GroupRow(prompt, completion) for prompt, completion in rows]
        scores = self.scores(self.model, group_rows, entropy=True, temperature=temperature)
        return scores.log_probs, scores.entropy

    def scores(
        self,
        model: Untyped,
        rows: Sequence[GroupRow],
        *,
        entropy: bool = False,
        temperature: float | None = None,
    ) -> CompletionScores:
        """Score completions with `model` and with the same settings as the loss."""
        return score_completions(
            model,
            rows,
            layout=self.layout_of(rows),
            device=self.args.device,
            temperature=self.temperature if temperature is None else temperature,
            entropy=entropy,
            autocast=self.accelerator.autocast,
        )

    def measure_gap(self, step: Inputs) -> float:
        """Return the mean |sampling log-prob - training log-prob| of a step, without dropout.

        If the model has no dropout, the log-probs come from the training forward pass. NaN if no
        row has a gradient."""
        if not self._has_noise:
            return self.figures.gap
        return gap_without_noise(
            self.model,
            self.rows_with_gradient(step),
            step["sampling_per_token_logps"],
            step["completion_mask"],
            partial(self.scores, self.model),
        )

    def rerun(self, batch: Inputs) -> torch.Tensor:
        """Rerun forward and backward of a step; return the loss. Log-prob gaps are not measured."""
        figures, self.figures = self.figures, StepScores()
        loss = torch.zeros((), device=self.args.device)
        try:
            for part in self.micro_batches(batch):
                loss = loss + super().training_step(self.model_wrapped, part, None)
        finally:
            self.figures = figures
        return loss

    @contextmanager
    def unmeasured(self, mode: str) -> Iterator[None]:
        """Within this block, forward passes do not change the metrics. `mode`: "train" or
        "eval"."""
        before = {name: list(values) for name, values in self._metrics[mode].items()}
        try:
            yield
        finally:
            self._metrics[mode].clear()
            self._metrics[mode].update(before)

    def layout_of(self, rows: Sequence[GroupRow]) -> GroupLayout:
        if self._shared_prompt == "auto":
            return choose_layout(sizes_of(rows)).layout
        return "shared" if self._shared_prompt else "plain"

    def rows_with_gradient(self, inputs: Inputs) -> list[GroupRow]:
        """Return the rows of a step; set `skip` on rows with a zero gradient.

        A row with zero advantage has a zero gradient, except if `beta` is above 0 or
        `top_entropy_quantile` is below 1."""
        rows: list[GroupRow] = inputs[ROWS]
        if self.beta or self.top_entropy_quantile < 1.0:
            return rows
        idle = (inputs["advantages"] == 0).tolist()
        return [
            GroupRow(row.prompt_ids, row.completion_ids, skip=row.skip or is_idle)
            for row, is_idle in zip(rows, idle, strict=True)
        ]


def _causal(model: Untyped) -> Untyped:
    return model.get_base_model() if hasattr(model, "peft_config") else model


def in_parts(inputs: Inputs, parts: int, loss_type: str) -> list[Inputs]:
    """Split a step into parts with about equal numbers of tokens.

    A part consists of consecutive rows, ordered by prompt. Only the first and the last group of a
    part can be incomplete. The loss of each part is multiplied by the part's weight; the sum over
    all parts is the step's loss."""
    rows: list[GroupRow] = inputs[ROWS]
    if parts <= 1 or len(rows) <= 1:
        return [inputs | {SHARE: 1.0}]
    tokens = float(inputs["completion_mask"].sum())
    result = []
    for indices in _spread(rows, min(parts, len(rows))):
        part = {name: _select(value, indices, len(rows)) for name, value in inputs.items()}
        part[ROWS] = [rows[index] for index in indices]
        part[SHARE] = 1.0
        if loss_type in _BY_ROWS:
            part[SHARE] = len(indices) / len(rows)
        elif loss_type == "bnpo":
            part[SHARE] = float(part["completion_mask"].sum()) / max(tokens, 1.0)
        result.append(part)
    return result


def _select(value: Any, indices: list[int], rows: int) -> Any:  # Any: values of a batch
    if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == rows:
        return value[torch.tensor(indices, device=value.device)]
    return value


def _spread(rows: Sequence[GroupRow], parts: int) -> list[list[int]]:
    """Order the rows by prompt, then cut them into `parts` pieces with about equal token counts."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        by_prompt.setdefault(row.prompt_ids, []).append(index)
    order = [index for group in by_prompt.values() for index in group]
    sizes = [len(rows[index].completion_ids) + 1 for index in order]
    total, runs, done = sum(sizes), [[order[0]]], sizes[0]
    for place, (index, size) in enumerate(zip(order[1:], sizes[1:], strict=True), start=1):
        rest = parts - len(runs)
        due = done >= total * len(runs) / parts or len(order) - place <= rest
        if rest and due:
            runs.append([])
        runs[-1].append(index)
        done += size
    return runs
