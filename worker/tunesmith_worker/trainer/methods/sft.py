"""Supervised fine-tuning: TRL's SFTTrainer with rows that are already tokenised and labelled.

The trainer splits each optimiser step's rows into micro-batches; TRL computes loss and gradients.
Metrics are sums over tokens, which stay on the device until the metrics are logged.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import trl

from tunesmith_worker.engine.memory.retry import EvaluationRetry, StepRetry, micro_batch_of
from tunesmith_worker.engine.memory.shapes import MicroBatch
from tunesmith_worker.engine.patches.batch_layout import batch_layout
from tunesmith_worker.engine.patches.trl_compat import metrics_so_far, restore_metrics
from tunesmith_worker.engine.random_state import random_state
from tunesmith_worker.trainer.auto.layout_choice import Layout
from tunesmith_worker.trainer.auto.layouts import Layouts
from tunesmith_worker.trainer.data.tokens import IGNORED

from .batches import (
    LAYOUT,
    Batch,
    batch_to_device,
    collate,
    predicting_tokens,
    split,
    to_device,
)
from .nan_guard import NanGuard, StepRecord
from .nan_rows import RowName, explain_rows
from .safe_step import Resumable, SafeStep

Untyped = Any  # Any: transformers and TRL are not typed


class SFTTrainer(SafeStep, Resumable, trl.SFTTrainer):  # type: ignore[misc]  # TRL is untyped
    TIMED_STEP = "training_step"
    """Name of the method that runs the forward and backward passes of one optimiser step."""

    def __init__(
        self,
        *,
        save: Callable[[int], None],
        layouts: Layouts,
        embedding_rate: float | None = None,
        **trl_arguments: Untyped,
    ) -> None:
        """`save`, `embedding_rate`: see `init_safe_step`."""
        super().__init__(data_collator=collate, **trl_arguments)
        self._layouts = layouts
        guard = NanGuard(self.args.device, lambda step: explain_rows(self, step))
        self.init_safe_step(guard, save=save, embedding_rate=embedding_rate)
        pad_token_id = trl_arguments["processing_class"].pad_token_id
        self._split = partial(split, pad_token_id=pad_token_id)
        self._sums = {mode: _Sums(self.args.device) for mode in ("train", "eval")}
        self._trained = torch.zeros((), dtype=torch.int64, device=self.args.device)
        self.memory: StepRetry | None = None
        """Handler of out-of-memory errors in training steps; None until memory is planned."""
        self.evaluation_memory = EvaluationRetry(lambda text: None)
        self.step_loss = torch.zeros((), device=self.args.device)
        """Loss of the last step."""
        self.name_row: RowName | None = None
        """Function that names a row in messages, from its token ids and labels."""

    @property
    def trained_tokens(self) -> int:
        """Number of tokens with loss so far."""
        return int(self._trained)

    @property
    def input_tokens(self) -> int:
        """Number of input tokens so far."""
        return self._total_train_tokens

    def get_train_dataloader(self) -> Untyped:
        loader = super().get_train_dataloader()
        loader.device = None  # rows stay on the host until the micro-batches are built
        return loader

    def get_batch_samples(
        self, epoch_iterator: Untyped, num_batches: int, device: torch.device
    ) -> tuple[list[Untyped], Untyped]:
        batches, labels = super().get_batch_samples(
            epoch_iterator, num_batches, torch.device("cpu")
        )
        return batches, to_device(labels, device)

    def training_step(
        self, model: Untyped, inputs: dict[str, Untyped], num_items_in_batch: Untyped = None
    ) -> torch.Tensor:
        """Run forward and backward of one optimiser step, micro-batch by micro-batch."""
        step = partial(self._whole_step, model, inputs, num_items_in_batch)
        return step() if self.memory is None else self.memory.run(step)

    def _whole_step(
        self, model: Untyped, inputs: dict[str, Untyped], num_items_in_batch: Untyped
    ) -> torch.Tensor:
        layout = self._layouts.chosen
        self.guard.start_step(
            StepRecord(
                number=self.state.global_step + 1,
                rows=inputs,
                layout=layout,
                labelled=num_items_in_batch,
                random_state=random_state(),
            )
        )
        batches = self.micro_batches(inputs, layout)
        self.current_gradient_accumulation_steps = len(batches)
        seen = self._total_train_tokens + sum(inputs["lengths"])
        loss = torch.zeros((), device=self.args.device)
        for batch in batches:
            last = batch is batches[-1]
            inputs_on_device = batch_to_device(batch, self.args.device)
            if self.memory is not None:
                self.memory.observe(batch)
            with nullcontext() if last else self.accelerator.no_sync(model=model):
                loss = loss + super().training_step(model, inputs_on_device, num_items_in_batch)
        self._total_train_tokens: int = seen
        self.step_loss = loss
        return loss

    def rerun(self, rows: Batch, step: StepRecord) -> torch.Tensor:
        """Rerun forward and backward on some rows of a step. Return the part of the step's loss
        that comes from `rows`."""
        loss = torch.zeros((), device=self.args.device)
        for batch in self.micro_batches(rows, step.layout):
            inputs_on_device = batch_to_device(batch, self.args.device)
            loss = loss + super().training_step(self.model_wrapped, inputs_on_device, step.labelled)
        return loss

    zero_gradient_is_valid = False
    """True if a step may have a zero gradient and a loss of 0 without being faulty."""

    @staticmethod
    def labelled_tokens(rows: Batch) -> int:
        """Return the number of labelled tokens in a collated step, on the host."""
        return int((rows["labels"] != IGNORED).sum())

    @staticmethod
    def predicting_tokens(rows: Batch) -> torch.Tensor:
        """Return the ids of the tokens that directly precede a labelled token."""
        return predicting_tokens(rows)

    def micro_batches(self, step: Batch, layout: Layout) -> list[Batch]:
        """Split a collated step into as many micro-batches as memory requires."""
        parts = 1 if self.memory is None else self.memory.policy.parts
        return self._split(step, layout.divided(parts))

    def longest_step(self) -> Batch:
        """Return a step of the longest rows, the largest step that the data can produce."""
        lengths: list[int] = []
        for table in self.train_dataset.with_format("arrow").iter(10_000):
            lengths += table["input_ids"].combine_chunks().value_lengths().to_pylist()
        rows = min(self.args.per_device_train_batch_size, len(lengths))
        longest = heapq.nlargest(rows, range(len(lengths)), key=lengths.__getitem__)
        return collate([self.train_dataset[index] for index in longest])

    @staticmethod
    def describe(batch: Batch, *, count_labels: bool = False) -> MicroBatch:
        return micro_batch_of(batch, count_labels=count_labels)

    @staticmethod
    def probe_batch(batch: Batch) -> Batch:
        return batch

    def probe_loss(self, batch: Batch, labelled: int) -> torch.Tensor:
        """Return the loss of a micro-batch as in training, without updating metrics."""
        inputs = batch_to_device(batch, self.args.device)
        with self.accelerator.autocast(), batch_layout(inputs.pop(LAYOUT)):
            outputs = self.model(**inputs, use_cache=False, fused_lm_head=True)
        loss: torch.Tensor = -outputs.log_probs.sum() / labelled
        return loss

    def counters(self, mode: str = "train") -> Untyped:
        """Return a copy of the metrics, which `restore_counters` restores if a step is repeated."""
        sums = self._sums[mode].values.clone()
        return metrics_so_far(self, mode), sums, self._trained.clone()

    def restore_counters(self, counters: Untyped) -> None:
        self._restore(counters, "train")

    @contextmanager
    def unmeasured(self, mode: str) -> Iterator[None]:
        """Within this block, forward passes do not change the metrics. `mode`: "train" or
        "eval"."""
        counters = self.counters(mode)
        try:
            yield
        finally:
            self._restore(counters, mode)

    def _restore(self, counters: Untyped, mode: str) -> None:
        metrics, sums, trained = counters
        restore_metrics(self, metrics, mode)
        self._sums[mode].values.copy_(sums)
        self._trained.copy_(trained)

    def state_dict(self) -> tuple[dict[str, Untyped], dict[str, torch.Tensor]]:
        plain, tensors = super().state_dict()
        lists, seen = metrics_so_far(self)
        lists = {name: [float(value) for value in values] for name, values in lists.items()}
        sums = {"sums": self._sums["train"].values, "trained_tokens": self._trained}
        return plain | {"metrics": lists, "input_tokens": seen}, tensors | sums

    def load_state_dict(self, plain: dict[str, Untyped], tensors: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(plain, tensors)
        metrics = plain["metrics"], plain["input_tokens"]
        self.restore_counters((metrics, tensors["sums"], tensors["trained_tokens"]))

    def prediction_step(
        self, model: Untyped, inputs: dict[str, Untyped], *_: Untyped, **__: Untyped
    ) -> tuple[Untyped, None, None]:
        counters, layout = self.counters("eval"), self._layouts.chosen

        def whole(parts: int) -> Untyped:
            loss = None
            for batch in self._split(inputs, layout.divided(parts)):
                loss, _, _ = super(SFTTrainer, self).prediction_step(
                    model, batch, prediction_loss_only=True
                )
            return loss

        rows = max(layout.rows or 1, sum(inputs["rows_of_examples"]))
        # Do not call `restore_counters`: the report counts its calls as repeated training steps.
        undo = partial(self._restore, counters, "eval")
        loss = self.evaluation_memory.run(whole, rows=rows, restore=undo)
        return loss, None, None  # `log` reports the loss of the whole validation file

    def compute_loss(
        self,
        model: Untyped,
        inputs: dict[str, Untyped],
        return_outputs: bool = False,
        num_items_in_batch: Untyped = None,
    ) -> Untyped:
        """Compute TRL's loss. Metrics stay on the device, so the host does not wait for them."""
        layout = inputs.pop(LAYOUT, None)
        sums = self._sums["train" if model.training else "eval"]
        tokens = (inputs["labels"][:, 1:] != IGNORED).sum()
        count = tokens if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        count = count.clamp(min=1)
        if model.training:
            self._trained += tokens
        if self.aux_loss_enabled:  # mixture of experts: TRL adds the load-balancing loss
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            sums.add(tokens, (loss[0] if return_outputs else loss) * count)
            return loss
        with batch_layout(layout):
            outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        nll = -outputs.log_probs.sum()
        sums.add(tokens, nll, outputs.entropy.sum(), outputs.is_top1.sum())
        return (nll / count, outputs) if return_outputs else nll / count

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.before_logging(logs)
        mode = "train" if self.model.training else "eval"
        means, metrics = self._sums[mode].pop_means(), self._metrics[mode]
        if "eval_loss" in logs and means:
            # The Trainer weights batches by rows; the loss of a file is a mean over tokens.
            logs["eval_loss"] = means["nll"]
        metrics["num_tokens"] = [self._total_train_tokens]
        if means and not self.aux_loss_enabled:
            metrics["entropy"] = [means["entropy"]]
            metrics["mean_token_accuracy"] = [means["top1"]]
        super().log(logs, start_time)


class _Sums:
    _NAMES = ("nll", "entropy", "top1")

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(1 + len(self._NAMES), dtype=torch.float64, device=device)

    def add(self, tokens: torch.Tensor, *sums: torch.Tensor) -> None:
        now = torch.stack([value.detach().double() for value in (tokens, *sums)])
        self.values[: len(now)] += now

    def pop_means(self) -> dict[str, float]:
        """Return the mean of each metric over all tokens, and reset the sums. If no token was
        counted, return {}."""
        tokens, *sums = self.values.tolist()
        self.values.zero_()
        if not tokens:
            return {}
        return dict(zip(self._NAMES, (value / tokens for value in sums), strict=True))
