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
from ..embeddings import embedding_parameters, give_rate
from ..plan import DataPlan, LoadPlan, TrainPlan
from .micro_batches import balance

Untyped = Any  # Any: transformers and TRL are not typed


class SFTTrainer(trl.SFTTrainer):  # type: ignore[misc]  # TRL is untyped
    def __init__(
        self,
        *,
        save: Callable[[int], None],
        embedding_rate: float | None = None,
        **arguments: Untyped,
    ) -> None:
        """`save` writes a checkpoint of the given step; `embedding_rate`: peak rate of the
        embedding, the head and token rows, None: as all others."""
        super().__init__(**arguments)
        self._save = save
        self._embedding_rate = embedding_rate
        # Kept on the device: reading them at every step would wait for it.
        self._trained = torch.zeros((), dtype=torch.int64, device=self.args.device)
        self._valid_loss = torch.zeros((), dtype=torch.float64, device="cpu")
        self._valid_tokens = 0

    @property
    def trained_tokens(self) -> int:
        """Tokens that carried loss so far."""
        return int(self._trained)

    def create_optimizer(self, model: Untyped = None) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self._embedding_rate is not None:
            give_rate(optimizer, embedding_parameters(self.model), self._embedding_rate)
        return optimizer

    def get_batch_samples(
        self, epoch_iterator: Untyped, num_batches: int, device: torch.device
    ) -> tuple[list[Untyped], Untyped]:
        batches, labels = super().get_batch_samples(epoch_iterator, num_batches, device)
        return balance(batches), labels

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
        if self._embedding_rate is not None and "learning_rate" in logs:
            share = self._embedding_rate / self.args.learning_rate  # the schedule scales both
            logs["embedding_learning_rate"] = logs["learning_rate"] * share
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
        activation_checkpointing=load.gradient_checkpointing,
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
