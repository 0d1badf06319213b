"""Why a step's gradient is not finite: the rows that make it so, the token and the layer.

The step's rows are run again one by one, at the weights and with the random numbers that the step
had. Slow, and only run when the run has failed.
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
_GUARDED = "The update was not applied: the weights are those before this step."


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """One row's, or all rows', forward and backward."""

    rows: dict[str, Untyped]
    loss: float
    bad_gradient: str | None
    """The parameter nearest to the loss whose gradient is not finite."""
    bad_forward: str | None
    """Where the first value arises that is not finite."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and self.bad_gradient is None


def explain_rows(trainer: Untyped, step: StepRecord) -> RunError:
    """What to tell the user of a step whose gradient was not finite; gradients are gone then."""
    with _as_it_was(trainer):
        bad_weights = [name for name, p in trainer.model.named_parameters() if not _finite(p)]
        passes = [_run_again(trainer, rows, step) for rows in _each_row(step.rows)]
        bad = [one for one in passes if not one.finite]
        if not bad:
            return _not_by_itself(step, _run_again(trainer, step.rows, step), len(passes))
        finite_losses = [one.loss for one in passes if one.finite]
        return _blamed(trainer, step, bad, finite_losses, bad_weights)


def _blamed(
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
        names = [_name(trainer, one.rows) for one in bad[:_SHOWN]]
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        low, high = min(finite_losses), max(finite_losses)
        who = (
            f"It comes from {'; '.join(names)}{more}, whose loss is {first.loss:.4g}. The other "
            f"{len(finite_losses)} rows of the step are fine: their parts of its loss are "
            f"{low:.4g} to {high:.4g}."
        )
    elif total == 1:
        who = f"It comes from the step's only row, {_name(trainer, first.rows)}."
    else:
        who = f"Each of the step's {total} rows makes it so: it is not the data."
    where = first.bad_forward if loss_is_bad else None
    if loss_is_bad:
        where = f"The first value that is not finite comes out of {where or 'the loss head'}."
    else:
        where = f"The loss is finite ({first.loss:.4g}), the gradient of {first.bad_gradient} not."
    category, hint, param = _advice(step, bool(finite_losses), total, bad_weights)
    return RunError(
        ErrorCode.LOSS_NONFINITE if loss_is_bad else ErrorCode.GRADIENT_NONFINITE,
        f"Step {step.number}: the gradient is not finite. {who} {where} {_GUARDED}"
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
            "The base model's own weights are damaged: use another copy of it.",
            None,
        )
    if some_are_fine:
        return (
            ErrorCategory.DATA,
            "Look at what is odd about the named row: mend or remove it. If nothing is, lower "
            "recipe.learning_rate.",
            None,
        )
    hint = "Lower recipe.learning_rate, by a factor of 10 to begin with, and keep "
    hint += "recipe.max_grad_norm at 1."
    if total == 1:
        hint += " If that does not help, look at the named row."
    if step.number == 1:
        hint = "No step has been taken yet, so it is no setting of training: try "
        hint += "recipe.precision='fp32' or another copy of the model."
        return ErrorCategory.USER, hint, "recipe.precision"
    return ErrorCategory.USER, hint, "recipe.learning_rate"


def _not_by_itself(step: StepRecord, whole: _Pass, rows: int) -> RunError:
    if whole.finite:
        return RunError(
            ErrorCode.GRADIENT_NONFINITE,
            f"Step {step.number}: the gradient was not finite, but running its {rows} rows again, "
            "one by one and together, gives finite numbers: no row is to blame, and what happened "
            f"does not repeat. {_GUARDED}",
            category=ErrorCategory.INFRASTRUCTURE,
            hint="Start the job again. If it happens again on this device, check its memory.",
        )
    return RunError(
        ErrorCode.GRADIENT_NONFINITE,
        f"Step {step.number}: the gradient is not finite. No single row of its {rows} makes it so, "
        f"only all of them together (loss {whole.loss:.4g}, gradient of {whole.bad_gradient}). "
        f"{_GUARDED}",
        hint="Lower recipe.learning_rate by a factor of 10.",
        param="recipe.learning_rate",
    )


def _run_again(trainer: Untyped, rows: dict[str, Untyped], step: StepRecord) -> _Pass:
    trainer.model.zero_grad(set_to_none=True)
    restore_random_state(step.random_state)
    with _first_bad_output(trainer.model) as found:
        loss = float(trainer.rerun(rows, step))
    # Backward goes from the last layer to the first.
    bad = [
        name
        for name, p in trainer.model.named_parameters()
        if p.grad is not None and not _finite(p.grad)
    ]
    place = None
    if found:
        name, at = found[0]
        place = _readable(name) + _at_token(trainer, rows, at)
    return _Pass(
        rows=rows,
        loss=loss,
        bad_gradient=_readable(bad[-1]) if bad else None,
        bad_forward=place,
    )


@contextmanager
def _as_it_was(trainer: Untyped) -> Iterator[None]:
    """Within, rows can be run; counters and random numbers are put back, gradients are dropped."""
    counters, state = trainer.counters(), random_state()
    try:
        yield
    finally:
        trainer.model.zero_grad(set_to_none=True)
        trainer.restore_counters(counters)
        restore_random_state(state)


@contextmanager
def _first_bad_output(model: Untyped) -> Iterator[list[tuple[str, int | None]]]:
    """Within, notes the first module whose output is not finite, and at which place of its second
    dimension. What our kernels compute without a module shows at the layer around it."""
    found: list[tuple[str, int | None]] = []

    def hook(name: str) -> Callable[..., None]:
        def look(module: Untyped, given: Untyped, output: Untyped) -> None:
            tensor = output[0] if isinstance(output, tuple) and output else output
            if found or not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                return
            bad = ~tensor.detach().isfinite()
            if bool(bad.any()):
                at = bad.flatten(2).any(2)[0].nonzero() if bad.dim() > 2 else None
                found.append((name, None if at is None else int(at[0])))

        return look

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        yield found
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
    """What to tell the user; the model's gradients are gone then."""
    trainer.model.zero_grad(set_to_none=True)
    weights = [name for name, one in trainer.model.named_parameters() if not _finite(one)]
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
        hint="Lower recipe.learning_rate, by a factor of 10 to begin with; with recipe.grpo.beta "
        "above 0, lower it as well.",
        param="recipe.learning_rate",
    )
