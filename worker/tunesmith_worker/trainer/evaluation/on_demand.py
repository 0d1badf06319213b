"""Evaluation of stored models on a file. If the rows have answers, losses are computed; with a
grader, rewards are computed.

The code that selects rows, generates answers and writes the verdict is the same as in the
evaluation at the end of a job."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from tunesmith_schema import Evaluation, Grader
from tunesmith_schema.evaluations import MAX_ANSWER_TOKENS
from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.engine.model.base_model import find_device
from tunesmith_worker.engine.rollout import RolloutEngine
from tunesmith_worker.engine.rollout.choose import Workload, choose_engine
from tunesmith_worker.rundir.evaluation_spec import EvaluationSpec
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.rundir.process import SpawnSettings
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.data.prompts import check_fields, prompt_rows
from tunesmith_worker.trainer.data.token_cache import TokenCache
from tunesmith_worker.trainer.data.token_stream import usable_processes
from tunesmith_worker.trainer.data.tokens import tokenize_file
from tunesmith_worker.trainer.rewards import Grading

from .budget import Budget
from .models import EvaluatedModel, Untyped
from .reinforcement import ReinforcementEvaluation
from .results import combined
from .stored_models import StoredModel
from .supervised import EvaluationRows, SupervisedEvaluation

SECONDS = 600.0
"""Planned seconds for computing losses and generating answers. Computing rewards may take as
many seconds. If the time is too short for all rows, fewer rows are used."""
_SEED = 0
"""Seed of the choice of rows: every evaluation of a large file uses the same rows."""
_UNLIMITED = 1_000_000
"""Assumed context in tokens, if the model has no limit."""
_FORWARD_TOKENS = 2048
"""Maximum number of tokens, padding included, in a forward pass. If the longest row has more
tokens, the maximum is the length of this row."""
_ROWS_AT_A_TIME = 64


def evaluate(spec: EvaluationSpec, folder: Path) -> Evaluation:
    """Evaluate the models of `spec`; `folder` has the data file. Raises RunError if a model cannot
    be evaluated."""
    device = torch.device("cuda" if find_device().is_gpu else "cpu")
    model = StoredModel(spec.model, device, "model")
    models = [EvaluatedModel(name="model", step=None, use=model.use)]
    if spec.against is not None:
        against = StoredModel(spec.against, device, "against")
        vocabulary = model.base.tokenizer.get_vocab()
        use = partial(against.use_like, model, vocabulary)
        models.append(EvaluatedModel(name="against", step=None, use=use))
    metrics = int(spec.losses) + int(spec.grader is not None)
    began = Budget(seconds=SECONDS)
    evaluations: list[Evaluation] = []
    if spec.grader is not None:
        rewards = _reinforcement(spec, spec.grader, folder, model, metrics)
        evaluations.append(rewards.evaluate(models, Budget(seconds=SECONDS)))
    if spec.losses:
        losses = _supervised(spec, folder, model, metrics)
        evaluations.append(losses.evaluate(models, Budget(seconds=SECONDS)))
    evaluation = combined(*evaluations)
    evaluation.seconds = round(began.spent, 3)
    return evaluation


def _supervised(
    spec: EvaluationSpec, folder: Path, model: StoredModel, metrics: int
) -> SupervisedEvaluation:
    base, cache = model.base, SpawnSettings.from_environment().token_cache
    rows = tokenize_file(
        folder / spec.file,
        base.tokenizer,
        DataPlan(
            max_seq_length=base.context or _UNLIMITED,
            overlong="drop",
            assistant_only_loss=True,
            packing=False,
            context=base.context,
        ),
        vocabulary=base.vocabulary,
        cache=TokenCache(Path(cache)) if cache else None,
        scratch=folder,
        processes=usable_processes(),
        name=spec.file_name,
        report=_log,
        warn=_log,
    )
    return SupervisedEvaluation(
        EvaluationRows(dataset=rows.dataset, numbers=rows.rows, on=spec.on, file=spec.file_name),
        base.tokenizer,
        seed=_SEED,
        max_tokens=max(_FORWARD_TOKENS, rows.counts.longest),
        end_tokens=base.eos_ids,
        autocast=nullcontext,
        metrics=metrics,
        dropped=rows.counts.rows - rows.counts.kept,
    )


def _reinforcement(
    spec: EvaluationSpec, grader: Grader, folder: Path, model: StoredModel, metrics: int
) -> ReinforcementEvaluation:
    base = model.base
    longest = min(MAX_ANSWER_TOKENS, (base.context or _UNLIMITED) // 2)
    prompts, counts = prompt_rows(
        folder / spec.file,
        base.tokenizer,
        limit=base.context and base.context - longest,
        refuse=False,
        vocabulary=base.vocabulary,
        remedy="use a model with a longer context",
        name=spec.file_name,
    )
    check_fields(grader, prompts, spec.file_name)
    return ReinforcementEvaluation(
        prompts,
        base.tokenizer,
        partial(_engine, base.tokenizer, prompts, longest),
        lambda: Grading(grader),
        on=spec.on,
        file=spec.file_name,
        seed=_SEED,
        max_tokens=longest,
        stop_tokens=base.eos_ids,
        metrics=metrics,
        dropped=counts.dropped_too_long,
    )


def _engine(
    tokenizer: Untyped, prompts: Sequence[PromptRow], max_tokens: int, model: Untyped
) -> RolloutEngine:
    workload = Workload(
        model=model,
        rows=min(len(prompts), _ROWS_AT_A_TIME),
        prompt_tokens=max(len(row.prompt_ids) for row in prompts),
        max_tokens=max_tokens,
        free=read_free_memory(next(model.parameters()).device, 0).free,
    )
    kind = choose_engine(False, workload).kind
    return kind.make(model, kind.plan(workload), tokenizer)


def _log(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # the supervisor keeps the output as trainer.log
