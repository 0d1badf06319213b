"""What a run trains with, as the report shows it: the settled plans in one table. The layout of
rows comes later: it may be measured while training.
"""

from __future__ import annotations

from tunesmith_schema import TrainingSettings
from tunesmith_worker.rundir.plan import DataPlan, LoadPlan, TrainPlan


def training_settings(
    load: LoadPlan, data: DataPlan, train: TrainPlan, *, full: bool, recomputes: bool
) -> TrainingSettings:
    """`recomputes`: some layer does."""
    return TrainingSettings(
        tuning="full" if full else "lora",
        precision=load.precision,
        per_device_train_batch_size=train.per_device_train_batch_size,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        packing=data.packing,
        gradient_checkpointing=recomputes,
        logging_steps=train.logging_steps,
        eval_steps=train.eval_steps,
        save_steps=train.save_steps,
    )
