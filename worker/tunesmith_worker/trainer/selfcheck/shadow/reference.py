"""Check that the reference model of the KL term is the model before training.

Before the first update, policy and reference are equal. A trainer that wrongly uses the policy as
reference can be found only after the first update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tunesmith_worker.trainer.data.tokens import IGNORED
from tunesmith_worker.trainer.methods.groups import ROWS, GroupRow
from tunesmith_worker.trainer.methods.reference import parameters_beside_adapter
from tunesmith_worker.trainer.selfcheck.check_context import ReinforcementContext
from tunesmith_worker.trainer.selfcheck.findings import Finding
from tunesmith_worker.trainer.selfcheck.model_runs import (
    disabled_adapter,
    restored_state,
    stock_modules,
)

from .compare import fault
from .expected import label_log_probs
from .fed_rows import FedRow
from .limits import changes_with_length, tolerance_of

Untyped = Any  # Any: transformers and TRL are not typed

CHECK = "reference"
ROWS_TO_CHECK = 4
TOKENS = 1024
"""Maximum tokens of the rows to check, unless a single row has more."""
LOG_PROB = 1e-4
"""RMS tolerance of the reference model's log-probs in fp32 on a CPU; the same value as in
parity.EXACT."""
LOG_PROB_GPU = 5e-3
LOG_PROB_16_BITS = 0.25
NEARER = 0.5
"""Factor to detect that the trainer wrongly uses the policy as reference: distance(reference,
policy) < NEARER x distance(reference, model before training). Distances are RMS differences of
log-probs."""
ROUNDING = 0.05
"""Maximum RMS difference of 16-bit log-probs that rounding may cause."""


def as_row(prompt: tuple[int, ...], completion: tuple[int, ...]) -> FedRow:
    """Return a completion with its prompt; only the completion has labels."""
    return FedRow(prompt + completion, (IGNORED,) * len(prompt) + completion)


class ReferenceCheck:
    def __init__(self, context: ReinforcementContext) -> None:
        """Copy the trained biases of a new model. Create this object before the run is resumed."""
        self._context = context
        self._initial: list[tuple[Untyped, torch.Tensor]] = []
        if context.trainer.plan.beta and not context.full:
            beside = parameters_beside_adapter(context.model)
            self._initial = [(p, p.detach().clone()) for p in beside]

    def log_probs(self, rows: Sequence[FedRow]) -> dict[int, torch.Tensor]:
        """Return the reference's log-probs of each row.

        Call this method in a block with stock modules.

        In full tuning, the reference before the first update is the model itself. After the first
        update, the reference is the trainer's copy of the initial model."""
        context = self._context
        temperature = context.trainer.plan.temperature
        if context.full:
            updated = context.trainer.state.global_step > 0
            model = context.trainer.ref_model if updated else context.model
            return label_log_probs(model, rows, context.device, temperature)
        with disabled_adapter(context.model), _values(self._initial):
            return label_log_probs(context.model, rows, context.device, temperature)

    def check(self) -> list[Finding]:
        """Compare the step's reference log-probs with log-probs of the model before training."""
        context = self._context
        trainer = context.trainer
        batch = trainer.guard.current_step.rows
        if not trainer.plan.beta or "ref_per_token_logps" not in batch:
            return []
        if context.full and trainer.ref_model is not None and self._shares_memory():
            return [_is_policy("both have the same memory")]
        places = _sample(batch[ROWS])
        rows = [as_row(batch[ROWS][i].prompt_ids, batch[ROWS][i].completion_ids) for i in places]
        longest = max((len(row.ids) for row in rows), default=0)
        if not rows or changes_with_length(context.model.config, longest):
            return []
        with restored_state(context.model, context.device), stock_modules(context.patched):
            policy = self._flat(label_log_probs(context.model, rows, context.device, self._heat))
            if not context.full:
                expected = self._flat(self.log_probs(rows))
        if context.full:
            reference = trainer.ref_model
            expected = self._flat(label_log_probs(reference, rows, context.device, self._heat))
        values = batch["ref_per_token_logps"]
        pairs = zip(places, rows, strict=True)
        actual = torch.cat([values[place, : row.labelled].float().cpu() for place, row in pairs])
        return self._judge(actual, expected, policy)

    def _judge(
        self, actual: torch.Tensor, expected: torch.Tensor, policy: torch.Tensor
    ) -> list[Finding]:
        single = tolerance_of(self._context).single
        on_gpu = self._context.device.type == "cuda"
        limit = LOG_PROB_16_BITS if not single else LOG_PROB_GPU if on_gpu else LOG_PROB
        apart, from_policy = _rms(actual - expected), _rms(actual - policy)
        nearer = from_policy < NEARER * apart
        if apart <= limit and (single or not nearer or apart <= ROUNDING):
            return []
        text = (
            f"its log-probabilities differ by {apart:.2g} from the model before training "
            f"(tolerance {limit:.0e}), and by {from_policy:.2g} from the policy"
        )
        if nearer:
            return [_is_policy(text)]
        return [fault(f"the reference of the KL term is another model: {text}.", CHECK)]

    def _shares_memory(self) -> bool:
        model, reference = self._context.model, self._context.trainer.ref_model
        own = {p.data_ptr() for p in model.parameters() if p.requires_grad}
        return any(p.data_ptr() in own for p in reference.parameters())

    @property
    def _heat(self) -> float:
        return float(self._context.trainer.plan.temperature)

    @staticmethod
    def _flat(rows: dict[int, torch.Tensor]) -> torch.Tensor:
        return torch.cat([rows[place].float().cpu() for place in sorted(rows)])


def _is_policy(text: str) -> Finding:
    return fault(f"the reference of the KL term is the policy, so the KL term is 0: {text}.", CHECK)


def _sample(rows: Sequence[GroupRow]) -> list[int]:
    places: list[int] = []
    tokens = 0
    for place, row in enumerate(rows):
        size = len(row.prompt_ids) + len(row.completion_ids)
        if not row.scored or len(places) == ROWS_TO_CHECK or (places and tokens + size > TOKENS):
            continue
        places.append(place)
        tokens += size
    return places


@contextmanager
def _values(values: list[tuple[Untyped, torch.Tensor]]) -> Iterator[None]:
    before = [(parameter, parameter.data) for parameter, _ in values]
    try:
        for parameter, value in values:
            parameter.data = value
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt()) if len(x) else 0.0
