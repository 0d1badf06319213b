"""Diagnosis of a non-finite gradient: finds the rows, the token and the layer that cause the fault.

After the run has failed, the step's rows are rerun one by one with the weights and the random state
of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.random_state import random_state, restore_random_state
from tunesmith_worker.rundir.errors import RunError

from .groups import ROWS
from .nan_guard import StepRecord

Untyped = Any  # Any: transformers and TRL are not typed
RowName = Callable[[Sequence[int], Sequence[int]], str]

_SHOWN = 3
_GUARDED = "The update was not applied: this step did not change the weights."


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """Result of one forward and backward pass, on one row or on all rows."""

    rows: dict[str, Untyped]
    loss: float
    bad_gradient: str | None
    """Name of the first parameter, in backward order, whose gradient is not finite."""
    bad_forward: str | None
    """Name of the first module whose output is not finite."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and self.bad_gradient is None


def explain_rows(trainer: Untyped, step: StepRecord) -> RunError:
    """Return an error that explains why the loss or gradient of a supervised step is not finite.
    The call clears the model's gradients."""
    with _restored_afterwards(trainer):
        bad_weights = [name for name, p in trainer.model.named_parameters() if not _finite(p)]
        passes = [_rerun(trainer, rows, step) for rows in _each_row(step.rows)]
        bad = [item for item in passes if not item.finite]
        if not bad:
            return _no_single_row(step, _rerun(trainer, step.rows, step), len(passes))
        finite_losses = [item.loss for item in passes if item.finite]
        return _rows_error(trainer, step, bad, finite_losses, bad_weights)


def _rows_error(
    trainer: Untyped,
    step: StepRecord,
    bad: list[_Pass],
    finite_losses: list[float],
    bad_weights: list[str],
) -> RunError:
    first = bad[0]
    loss_is_bad = not math.isfinite(first.loss)
    total = len(bad) + len(finite_losses)
    if finite_losses:
        names = [_name(trainer, item.rows) for item in bad[:_SHOWN]]
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        low, high = min(finite_losses), max(finite_losses)
        source = (
            f"The cause is {'; '.join(names)}{more}, with a loss of {first.loss:.4g}. The other "
            f"{len(finite_losses)} rows of the step are finite: their parts of the loss are "
            f"{low:.4g} to {high:.4g}."
        )
    elif total == 1:
        source = f"The cause is the step's only row, {_name(trainer, first.rows)}."
    else:
        source = (
            f"Each of the step's {total} rows alone gives a non-finite loss or gradient, so the "
            "data are not the reason."
        )
    where = first.bad_forward if loss_is_bad else None
    if loss_is_bad:
        where = f"The first non-finite output comes from {where or 'the loss head'}."
    else:
        where = (
            f"The loss is finite ({first.loss:.4g}), but the gradient of {first.bad_gradient} is "
            "not."
        )
    category, hint, param = _advice(step, bool(finite_losses), total, bad_weights)
    return RunError(
        ErrorCode.LOSS_NONFINITE if loss_is_bad else ErrorCode.GRADIENT_NONFINITE,
        f"Step {step.number}: the gradient is not finite. {source} {where} {_GUARDED}"
        + (f" {_listed(bad_weights)} is itself not finite." * bool(bad_weights)),
        category=category,
        hint=hint,
        param=param,
    )


def _advice(
    step: StepRecord, some_are_fine: bool, total: int, bad_weights: list[str]
) -> tuple[ErrorCategory, str, str | None]:
    if bad_weights:
        return (
            ErrorCategory.USER,
            "The weights of the base model are damaged. Use another copy of the model.",
            None,
        )
    if some_are_fine:
        return (
            ErrorCategory.DATA,
            "Check the named row, and fix or remove it. If the row looks normal, lower "
            "recipe.learning_rate.",
            None,
        )
    hint = (
        "Lower recipe.learning_rate, first by a factor of 10, and keep recipe.max_grad_norm at 1."
    )
    if total == 1:
        hint += " If a lower learning rate does not help, check the named row."
    if step.number == 1:
        hint = (
            "This is the first step, so no training setting is the reason. Try "
            "recipe.precision='fp32' or another copy of the model."
        )
        return ErrorCategory.USER, hint, "recipe.precision"
    return ErrorCategory.USER, hint, "recipe.learning_rate"


def _no_single_row(step: StepRecord, whole: _Pass, rows: int) -> RunError:
    if whole.finite:
        return RunError(
            ErrorCode.GRADIENT_NONFINITE,
            f"Step {step.number}: the gradient was not finite, but rerunning its {rows} rows, "
            "one by one and together, gives finite values: no row is the cause, and the failure "
            f"is not reproducible. {_GUARDED}",
            category=ErrorCategory.INFRASTRUCTURE,
            hint="Start the job again. If the failure repeats, check the memory of the device.",
        )
    return RunError(
        ErrorCode.GRADIENT_NONFINITE,
        f"Step {step.number}: the gradient is not finite. Each row alone has a finite "
        f"gradient, but all {rows} rows together have not (loss {whole.loss:.4g}, gradient of "
        f"{whole.bad_gradient}). "
        f"{_GUARDED}",
        hint="Lower recipe.learning_rate by a factor of 10.",
        param="recipe.learning_rate",
    )


def _rerun(trainer: Untyped, rows: dict[str, Untyped], step: StepRecord) -> _Pass:
    trainer.model.zero_grad(set_to_none=True)
    restore_random_state(step.random_state)
    with _first_bad_output(trainer.model) as outputs:
        loss = float(trainer.rerun(rows, step))
    # Backward goes from the last layer to the first.
    bad = [
        name
        for name, p in trainer.model.named_parameters()
        if p.grad is not None and not _finite(p.grad)
    ]
    place = None
    if outputs:
        name, at = outputs[0]
        place = _readable(name) + _at_token(trainer, rows, at)
    return _Pass(
        rows=rows,
        loss=loss,
        bad_gradient=_readable(bad[-1]) if bad else None,
        bad_forward=place,
    )


@contextmanager
def _restored_afterwards(trainer: Untyped) -> Iterator[None]:
    counters, state = trainer.counters(), random_state()
    try:
        yield
    finally:
        trainer.model.zero_grad(set_to_none=True)
        trainer.restore_counters(counters)
        restore_random_state(state)


@contextmanager
def _first_bad_output(model: Untyped) -> Iterator[list[tuple[str, int | None]]]:
    """Record the first module whose output is not finite, and the first index in dimension 1 of the
    output (the token position) with a value that is not finite.

    If a kernel outside any module computed the non-finite output, record the surrounding layer."""
    culprits: list[tuple[str, int | None]] = []

    def hook(name: str) -> Callable[..., None]:
        def look(module: Untyped, inputs: Untyped, output: Untyped) -> None:
            tensor = output[0] if isinstance(output, tuple) and output else output
            if culprits or not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                return
            bad = ~tensor.detach().isfinite()
            if bool(bad.any()):
                at = bad.flatten(2).any(2)[0].nonzero() if bad.dim() > 2 else None
                culprits.append((name, None if at is None else int(at[0])))

        return look

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        yield culprits
    finally:
        for handle in handles:
            handle.remove()


def _each_row(rows: dict[str, Untyped]) -> Iterator[dict[str, Untyped]]:
    ends = [0, *accumulate(rows["lengths"])]
    for start, stop in pairwise(ends):
        yield {
            "input_ids": rows["input_ids"][:, start:stop],
            "labels": rows["labels"][:, start:stop],
            "lengths": (stop - start,),
            "rows_of_examples": (1,),
        }


def _name(trainer: Untyped, rows: dict[str, Untyped]) -> str:
    ids, labels = rows["input_ids"][0].tolist(), rows["labels"][0].tolist()
    return trainer.name_row(ids, labels) if trainer.name_row else f"a row of {len(ids)} tokens"


def _at_token(trainer: Untyped, rows: dict[str, Untyped], at: int | None) -> str:
    if at is None or len(rows["lengths"]) > 1 or at >= rows["lengths"][0]:
        return ""
    token = int(rows["input_ids"][0, at])
    text = trainer.processing_class.convert_ids_to_tokens(token)
    return f", at token {at + 1} of the row ({text!r}, id {token})"


def _readable(name: str) -> str:
    return name.removeprefix("base_model.model.") or "the model"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(_readable, names[:_SHOWN])) + more


def _finite(x: torch.Tensor) -> bool:
    return not x.is_floating_point() or bool(x.isfinite().all())


def explain_completions(trainer: Untyped, step: StepRecord) -> RunError:
    """Return an error that explains why the loss or gradient of a GRPO step is not finite. The call
    clears the model's gradients."""
    trainer.model.zero_grad(set_to_none=True)
    weights = [name for name, p in trainer.model.named_parameters() if not _finite(p)]
    rows = step.rows[ROWS]
    with torch.no_grad():
        bad = [
            number
            for number, row in enumerate(rows)
            if row.scored and not _finite(trainer.scores(trainer.model, [row]).log_probs)
        ]
    if weights:
        cause = f"{weights[0]} is not finite"
    elif bad:
        cause = f"the log-probabilities of completion {bad[0]} of {len(rows)} are not finite"
    else:
        largest = float(step.rows["advantages"].abs().max())
        cause = f"every log-probability is finite; the largest advantage is {largest:.3g}"
    return RunError(
        ErrorCode.GRADIENT_NONFINITE,
        f"Step {step.number}: the gradient is not finite: {cause}. {_GUARDED}",
        hint="Lower recipe.learning_rate, first by a factor of 10. If recipe.grpo.beta is above 0, "
        "lower recipe.grpo.beta too.",
        param="recipe.learning_rate",
    )
