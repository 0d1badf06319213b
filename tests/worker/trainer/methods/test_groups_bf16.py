"""bf16: against the fp32 truth, a shared prompt errs at most 1.5 times as much as plain rows.

A tensor's error is the RMS over several random models and over the layers, as in
../patches/test_parity_bf16.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import (
    FAMILIES,
    infinite_if_nan,
    make_model,
    relative_rms,
    scored_by_trl,
    with_lora,
)
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.trainer.methods.groups import GroupLayout

from .group_rows import make_rows, trained

Untyped = Any  # Any: transformers and PEFT are not typed

ROWS = make_rows(((37, (60, 1, 33, 9)), (50, (5, 70))))
SEEDS = range(3)
LIMIT = 1.5


def _found(model: Untyped, layout: GroupLayout) -> dict[str, torch.Tensor]:
    scores, gradients = trained(model, ROWS, layout)
    return gradients | {"log_probs": scores.log_probs.detach()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_prompt_errs_no_more_than_one_and_a_half_times_plain_rows(family: str) -> None:
    errors: dict[str, defaultdict[str, float]] = {
        "shared": defaultdict(float),
        "plain": defaultdict(float),
    }
    for seed in SEEDS:
        model = make_model(family, seed=seed, dtype=torch.bfloat16)
        model = scored_by_trl(with_lora(model, seed=seed))
        patch(model)
        layouts: tuple[GroupLayout, ...] = ("shared", "plain")
        in_bf16 = {layout: _found(model, layout) for layout in layouts}
        truth = _found(model.float(), "plain")
        for layout, found in in_bf16.items():
            for name, one in found.items():
                kind = re.sub(r"layers\.\d+", "layers.*", name)
                errors[layout][kind] += relative_rms(one, truth[name]) ** 2
    quotients = {
        kind: infinite_if_nan(errors["shared"][kind] / errors["plain"][kind])
        for kind in errors["plain"]
    }
    worst = max(quotients, key=lambda kind: quotients[kind])
    assert quotients[worst] ** 0.5 <= LIMIT, f"{worst}: {quotients[worst] ** 0.5:.2f}"
