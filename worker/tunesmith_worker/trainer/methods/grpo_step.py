"""A reinforcement step as its memory, its tripwires and its loss see it: completions, how they are
laid out and cut into parts, and their log-probabilities.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
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

Untyped = Any  # Any: transformers is not typed
Inputs = dict[str, Any]  # Any: tensors as TRL names them, and `rows`
SHARE = "share"
"""The key under which a part has what its loss counts in the step's."""
_BY_ROWS = ("grpo", "sapo", "luspo", "dr_grpo")
"""Losses that are means over rows; bnpo's is one over tokens, the others divide by a number of the
whole step."""
PROBED = 4096
"""Tokens that the memory plan's trial pass is content with."""


class GRPOSteps(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Comes before TRL's GRPOTrainer in the list of bases."""

    def init_grpo_steps(
        self,
        plan: GRPOPlan,
        prompts: Sequence[tuple[int, ...]],
        shared_prompt: bool | Literal["auto"],
        least_parts: int,
    ) -> None:
        """In the constructor. `prompts`: token ids of all; `shared_prompt`: recipe.rollout's;
        `least_parts`: forward passes of a step, whatever its memory allows."""
        self._least_parts = least_parts
        self.plan, self._prompts, self._shared_prompt = plan, prompts, shared_prompt
        self.memory: StepRetry | None = None
        """Watches the memory of each step, where it has been planned."""
        self.figures = StepScores()
        """Of the last step."""

    zero_gradient_is_valid = True
    """Whether a step without any gradient is no fault, and its loss may be 0."""

    def labelled_tokens(self, rows: Inputs) -> int:
        """Completion tokens of a step that teach something."""
        scored = self.rows_with_gradient(rows)
        return sum(len(row.completion_ids) for row in scored if row.scored)

    def predicting_tokens(self, rows: Inputs) -> torch.Tensor:
        """Ids of the tokens whose hidden states the loss reads."""
        found = {
            token
            for row in self.rows_with_gradient(rows)
            if row.scored
            for token in (row.prompt_ids[-1], *row.completion_ids[:-1])
        }
        return torch.tensor(sorted(found), dtype=torch.int64)

    def micro_batches(self, step: Inputs, layout: Layout | None = None) -> list[Inputs]:
        """A step's, in as many parts as its memory needs. `layout`: there is but one."""
        parts = 1 if self.memory is None else self.memory.policy.parts
        return in_parts(step, parts * self._least_parts, self.loss_type)

    def longest_step(self) -> Inputs:
        """The longest prompts there are, and every completion as long as it may be."""
        plan = self.plan
        longest = heapq.nlargest(plan.prompts_per_step, self._prompts, key=len)
        rows = [
            GroupRow(ids, tuple(islice(cycle(ids), plan.max_completion_length)))
            for ids in longest
            for _ in range(plan.num_generations)
        ]
        return {ROWS: rows, "completion_mask": torch.ones(len(rows), 1)}

    def describe(self, batch: Inputs, *, count_labels: bool = False) -> MicroBatch:
        """`count_labels`: they are known anyway."""
        sizes = sizes_of(batch[ROWS])
        layout = self.layout_of(batch[ROWS])
        longest = max((one.prompt + max(one.completions) for one in sizes), default=1)
        count = sum(len(one.completions) for one in sizes)
        padded = not reads_segments(_causal(self.model))
        tokens = count * longest if padded else sum(one.tokens(layout) for one in sizes)
        return MicroBatch(
            rows=max(1, count),
            longest=longest,
            tokens=max(1, tokens),
            labelled=max(1, sum(sum(one.completions) for one in sizes)),
            padded=padded,
        )

    def segment_lengths(self, rows: Sequence[GroupRow]) -> tuple[int, ...]:
        """Tokens that go through a training pass, of each part that stands by itself: a shared
        prompt, what a completion has beyond it, a completion with a prompt of its own."""
        found: list[int] = []
        shared = self.layout_of(rows) == "shared" and reads_segments(_causal(self.model))
        for size in sizes_of(rows):
            own = [one - 1 for one in size.completions]
            if shared:
                found += [size.prompt, *own]
            else:
                found += [size.prompt + one for one in own]
        return tuple(one for one in found if one)

    def probe_batch(self, batch: Inputs) -> Inputs:
        """As many of its first rows as have PROBED tokens: a step of long completions may have a
        hundred times as many, and each row needs what the others need."""
        rows: list[GroupRow] = batch[ROWS]
        count = len(rows)
        while count > 1 and self.describe({ROWS: rows[:count]}).tokens > PROBED:
            count = (count + 1) // 2
        return batch if count == len(rows) else {ROWS: rows[:count]}

    def probe_loss(self, batch: Inputs, labelled: int) -> torch.Tensor:
        """Of a part, as training computes it; counts nothing."""
        found = self.scores(self.model, batch[ROWS], entropy=True)
        return -found.log_probs.sum() / labelled

    def score(
        self, rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and entropies of prompts' completions: the training forward, for who
        checks it."""
        given = [GroupRow(prompt, completion) for prompt, completion in rows]
        found = self.scores(self.model, given, entropy=True, temperature=temperature)
        return found.log_probs, found.entropy

    def scores(
        self,
        model: Untyped,
        rows: Sequence[GroupRow],
        *,
        entropy: bool = False,
        temperature: float | None = None,
    ) -> CompletionScores:
        """Of completions under `model`, as the loss is made of them."""
        return score_completions(
            model,
            rows,
            layout=self.layout_of(rows),
            device=self.args.device,
            temperature=self.temperature if temperature is None else temperature,
            entropy=entropy,
            autocast=self.accelerator.autocast,
        )

    def layout_of(self, rows: Sequence[GroupRow]) -> GroupLayout:
        if self._shared_prompt == "auto":
            return choose_layout(sizes_of(rows)).layout
        return "shared" if self._shared_prompt else "plain"

    def rows_with_gradient(self, inputs: Inputs) -> list[GroupRow]:
        """Rows without an advantage have a gradient of zero, unless something else than the
        advantage makes one: they need no forward."""
        rows: list[GroupRow] = inputs[ROWS]
        if self.beta or self.top_entropy_quantile < 1.0:
            return rows
        idle = (inputs["advantages"] == 0).tolist()
        return [
            GroupRow(row.prompt_ids, row.completion_ids, skip=row.skip or out)
            for row, out in zip(rows, idle, strict=True)
        ]


def _causal(model: Untyped) -> Untyped:
    return model.get_base_model() if hasattr(model, "peft_config") else model


def in_parts(inputs: Inputs, parts: int, loss_type: str) -> list[Inputs]:
    """Whole groups shared out by tokens; within them, rows where there are fewer groups. The
    parts' losses, each times its share, sum to the step's."""
    rows: list[GroupRow] = inputs[ROWS]
    if parts <= 1 or len(rows) <= 1:
        return [inputs | {SHARE: 1.0}]
    tokens = float(inputs["completion_mask"].sum())
    found = []
    for indices in _shared_out(rows, min(parts, len(rows))):
        part = {name: _taken(one, indices, len(rows)) for name, one in inputs.items()}
        part[ROWS] = [rows[index] for index in indices]
        part[SHARE] = 1.0
        if loss_type in _BY_ROWS:
            part[SHARE] = len(indices) / len(rows)
        elif loss_type == "bnpo":
            part[SHARE] = float(part["completion_mask"].sum()) / max(tokens, 1.0)
        found.append(part)
    return found


def _taken(value: Any, indices: list[int], rows: int) -> Any:  # Any: what a batch holds
    if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == rows:
        return value[torch.tensor(indices, device=value.device)]
    return value


def _shared_out(rows: Sequence[GroupRow], parts: int) -> list[list[int]]:
    """Consecutive rows of one prompt after the other, cut into `parts` runs of about equal
    tokens."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        by_prompt.setdefault(row.prompt_ids, []).append(index)
    order = [index for group in by_prompt.values() for index in group]
    sizes = [len(rows[index].completion_ids) + 1 for index in order]
    whole, found, done = sum(sizes), [[order[0]]], sizes[0]
    for place, (index, size) in enumerate(zip(order[1:], sizes[1:], strict=True), start=1):
        rest = parts - len(found)
        due = done >= whole * len(found) / parts or len(order) - place <= rest
        if rest and due:
            found.append([])
        found[-1].append(index)
        done += size
    return found
