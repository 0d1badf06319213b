"""Evaluation of a run's result: prepares the rows before training, and the models after
training."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunesmith_schema.retention import selection_loss
from tunesmith_worker.engine.rollout import RolloutEngine, eos_token_ids
from tunesmith_worker.trainer.data.prepare import Prepared
from tunesmith_worker.trainer.data.prompts import Prompts

from .assemble import PreparedRun
from .context import RunContext
from .evaluation.evaluate import evaluate_result
from .evaluation.models import (
    EvaluatedModel,
    LeftOut,
    Weights,
    free_training_memory,
    full_models,
    lora_models,
)
from .evaluation.reinforcement import ReinforcementEvaluation
from .evaluation.supervised import EvaluationRows, SupervisedEvaluation
from .load import LoadedModel
from .outputs import Callbacks
from .rewards import Grading

Untyped = Any  # Any: transformers and TRL are not typed


def supervised_evaluation(
    context: RunContext, loaded: LoadedModel, data: Prepared, trainer: Untyped, rows: int
) -> SupervisedEvaluation:
    """`rows`: number of rows per forward pass in training."""
    spec, base = context.spec, loaded.base
    lengths = [*data.training.lengths, *(data.validation.lengths if data.validation else ())]
    dataset, numbers = data.evaluation_rows()
    return SupervisedEvaluation(
        EvaluationRows(
            dataset=dataset,
            numbers=numbers,
            on="validation_file"
            if data.validation
            else "validation_split"
            if data.held_out
            else "training_file",
            file=spec.display_name(spec.validation_file or spec.training_file),
        ),
        base.tokenizer,
        seed=spec.seed,
        max_tokens=rows * max(lengths),
        end_tokens=frozenset(eos_token_ids(base.model, base.tokenizer)),
        autocast=trainer.accelerator.autocast,
    )


def reinforcement_evaluation(
    context: RunContext,
    loaded: LoadedModel,
    prompts: Prompts,
    make_engine: Callable[[Untyped], RolloutEngine],
    max_tokens: int,
) -> ReinforcementEvaluation:
    """`make_engine`: function that returns the rollout engine of a model.

    `max_tokens`: maximum tokens of a completion.
    """
    spec, base = context.spec, loaded.base
    split = prompts.validation is not None and not spec.validation_file
    return ReinforcementEvaluation(
        prompts.rows if prompts.validation is None else prompts.validation,
        base.tokenizer,
        make_engine,
        lambda: Grading(spec.grader, context.rewards),
        on="validation_split"
        if split
        else "validation_file"
        if spec.validation_file
        else "training_file",
        file=spec.display_name(spec.validation_file or spec.training_file),
        seed=spec.seed,
        max_tokens=max_tokens,
        stop_tokens=frozenset(eos_token_ids(base.model, base.tokenizer)),
    )


def keep_last_weights(context: RunContext, ready: PreparedRun, step: int) -> Path | None:
    """Save the weights of the last step for the evaluation, and return their folder.

    In full tuning, reading the result back replaces the weights in memory. Therefore, the weights
    of the last step are saved if the result is from an earlier `step`. In all other cases, save
    nothing and return None.

    If saving the weights fails, no error is raised, and the evaluation leaves the last step out."""
    last = ready.trainer.state.global_step
    if ready.evaluator is None or ready.reference is not None or step == last:
        return None
    folder = context.run.checkpoints / f".last-{last}.part"
    with suppress(Exception):  # e.g. a full disk; the result is saved already
        ready.saving.weights(folder)
    return folder


def evaluation_of(
    context: RunContext,
    loaded: LoadedModel,
    ready: PreparedRun,
    step: int,
    *,
    last: Path | None,
    intact: bool,
) -> Callable[[], None] | None:
    """Return the evaluation of the saved result; None with `recipe.evaluate: false`.

    `step`: step of the result. `last`: see `keep_last_weights`. `intact`: return value of
    `read_back`."""
    evaluator = ready.evaluator
    if evaluator is None:
        return None

    def models() -> Sequence[EvaluatedModel]:
        if not intact and ready.reference is None:
            raise LeftOut(
                "the saved result could not be loaded, and in full tuning the trained "
                "weights are removed from memory before the result is loaded"
            )
        if ready.patched is not None:
            ready.patched.redo()  # `read_back` removed the kernels
        free_training_memory(ready.trainer)
        weights = _weights(context, ready.trainer.state.global_step, step, ready.callbacks)
        if ready.reference is not None:
            return lora_models(loaded.model, ready.reference, weights)
        recipe, refusal = context.spec.recipe, None
        if recipe.from_scratch:
            refusal = "the run started from random weights (recipe.from_scratch)"
        elif loaded.new_tokens.ids:
            refusal = "the base model lacks the added tokens (recipe.add_tokens)"
        weights = replace(weights, last=last)
        return full_models(loaded.model, context.spec.model_path, weights, base_refusal=refusal)

    def evaluate() -> None:
        evaluate_result(
            context.run, context.events, context.control, context.recorder, evaluator, models
        )
        if last is not None:
            shutil.rmtree(last, ignore_errors=True)

    return evaluate


def _weights(context: RunContext, last: int, result: int, callbacks: Callbacks) -> Weights:
    """Return the weights to evaluate.

    The best checkpoint is included if it differs from the result and from the last step.
    """
    weights = Weights(last_step=last, result_step=result, result=context.run.adapter)
    known = {
        int(step): loss
        for step, loss in callbacks.light_checkpoints.saved.items()
        if loss is not None and math.isfinite(loss) and int(step) not in (last, result)
    }
    if not known or result != last:
        return weights
    step = min(known, key=lambda number: (known[number], number))
    now = selection_loss(callbacks.run.metrics)
    folder = context.run.checkpoint(step)
    if not folder.is_dir() or (now is not None and known[step] >= now):
        return weights
    return Weights(
        last_step=last, result_step=result, result=weights.result, best_step=step, best=folder
    )
