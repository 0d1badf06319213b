"""Supervised fine-tuning: TRL's SFTTrainer, fed with rows that are tokenised and labelled already.

Adds token counts and a validation loss per token; loss and gradients are TRL's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trl

from ..data.tokens import IGNORED
from ..patches.trl_compat import metrics_so_far, restore_metrics
from ..plan import DataPlan, LoadPlan, TrainPlan
from .micro_batches import balance
from .step_memory import StepMemory

Untyped = Any  # Any: transformers and TRL are not typed


class SFTTrainer(trl.SFTTrainer):  # type: ignore[misc]  # TRL is untyped
    def __init__(self, *, save: Callable[[int], None], **arguments: Untyped) -> None:
        """`save` writes a checkpoint of the given step."""
        super().__init__(**arguments)
        self._save = save
        # Kept on the device: reading them at every step would wait for it.
        self._trained = torch.zeros((), dtype=torch.int64, device=self.args.device)
        self._valid_loss = torch.zeros((), dtype=torch.float64, device="cpu")
        self._valid_tokens = 0
        self.memory: StepMemory | None = None
        """Watches the memory of each step, where it has been planned."""

    @property
    def trained_tokens(self) -> int:
        """Tokens that carried loss so far."""
        return int(self._trained)

    def get_batch_samples(
        self, epoch_iterator: Untyped, num_batches: int, device: torch.device
    ) -> tuple[list[Untyped], Untyped]:
        batches, labels = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = balance(batches)
        if self.memory is not None:
            self.memory.step_begins(batches)
        return batches, labels

    def training_step(
        self, model: Untyped, inputs: dict[str, Untyped], num_items_in_batch: Untyped = None
    ) -> torch.Tensor:
        def run(batch: dict[str, Untyped]) -> torch.Tensor:
            loss: torch.Tensor = super(SFTTrainer, self).training_step(
                model, batch, num_items_in_batch
            )
            return loss

        return run(inputs) if self.memory is None else self.memory.run(run, inputs)

    def counters(self) -> Untyped:
        """What counts tokens and averages metrics, as it stands: a step may have to be repeated."""
        return metrics_so_far(self), self._trained.clone()

    def restore_counters(self, counters: Untyped) -> None:
        metrics, self._trained = counters
        restore_metrics(self, metrics)

    def compute_loss(
        self,
        model: Untyped,
        inputs: dict[str, Untyped],
        return_outputs: bool = False,
        num_items_in_batch: Untyped = None,
    ) -> Untyped:
        tokens = (inputs["labels"][:, 1:] != IGNORED).sum()
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if model.training:
            self._trained += tokens
        else:
            value = loss[0] if return_outputs else loss
            self._valid_loss += value.detach().double().cpu() * int(tokens)
            self._valid_tokens += int(tokens)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "eval_loss" in logs and self._valid_tokens:
            # The Trainer weighs batches by rows; the loss of a file is the mean over its tokens.
            logs["eval_loss"] = float(self._valid_loss) / self._valid_tokens
            self._valid_loss.zero_()
            self._valid_tokens = 0
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Untyped, trial: Untyped) -> None:
        # The Trainer's own would pickle the optimiser and write a model card.
        self._save(self.state.global_step)


def sft_config(
    folder: Path,
    load: LoadPlan,
    data: DataPlan,
    train: TrainPlan,
    *,
    full: bool,
    seed: int,
    padding_free: bool,
) -> Untyped:
    """TRL's configuration for our plans: nothing in it is left to TRL's defaults that matters.

    `padding_free`: the rows of a batch stand end to end instead of side by side.
    """
    return trl.SFTConfig(
        output_dir=str(folder),  # nothing is written there
        seed=seed,
        data_seed=seed,
        learning_rate=train.learning_rate,
        lr_scheduler_type=train.lr_scheduler_type,
        warmup_steps=train.warmup_steps,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        per_device_train_batch_size=train.per_device_train_batch_size,
        per_device_eval_batch_size=train.per_device_train_batch_size,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        max_steps=train.total_steps,
        logging_steps=train.logging_steps,
        logging_nan_inf_filter=False,  # a NaN must be seen, not averaged away
        eval_strategy="no" if train.eval_steps is None else "steps",
        eval_steps=train.eval_steps,
        save_strategy="no",  # the callback asks for checkpoints
        activation_checkpointing=False,  # all or nothing: step_memory.py sets it layer by layer
        packing=data.packing,
        padding_free=padding_free,
        max_length=data.max_seq_length if data.packing else None,
        dataset_kwargs={"skip_prepare_dataset": True},
        # LoRA's frozen weights are in their dtype already; full tuning computes in it, see model.py
        bf16=full and load.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
        push_to_hub=False,
    )
