"""Whether positions are the model's own: frequencies that were damaged on the way into memory make
training and rollouts wrong alike, and no comparison of the two shows it."""

from __future__ import annotations

import math
from typing import Any

import torch

from tunesmith_worker.engine.rollout.positions import Positions

from .passes import backbone_of
from .rollout_prompts import prompt_fault
from .rollout_subject import ReinforcementSubject
from .subject import Outcome, judged, not_applicable

Untyped = Any  # Any: transformers is not typed

NAME = "positions"
FREQUENCY = 1e-5
"""Relative, of one: computed in fp32 on this device or another."""
ANGLE = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Of a cosine, by the dtype that it is rounded to."""
_TOKENS = 1024
"""Places that are compared."""


def check_positions(subject: ReinforcementSubject) -> Outcome:
    """`positions`: RoPE's frequencies are those of config.json, in the model and in the engine."""
    rotary = getattr(backbone_of(subject.model), "rotary_emb", None)
    if rotary is None or not hasattr(rotary, "rope_type"):
        return not_applicable(NAME, "the model has no RoPE of transformers' kind")
    expected = type(rotary)(rotary.config)
    off, where = _frequencies(rotary, expected)
    findings = []
    if not off <= FREQUENCY:
        findings.append(
            prompt_fault(
                NAME,
                f"wrong inv_freq: the model's {where} is {off:.1e} away from what its config.json "
                f"says, relatively (tolerance {FREQUENCY:.0e}).",
            )
        )
        return judged(NAME, findings, "")
    dtype = subject.model.dtype
    apart, limit = _tables(rotary, expected.to(subject.device), dtype, subject.device), ANGLE[dtype]
    if not apart <= limit:
        findings.append(
            prompt_fault(
                NAME,
                f"wrong inv_freq: the cosines and sines of the rollout engine are {apart:.1e} away "
                f"from those of the model's config.json (tolerance {limit:.0e}).",
            )
        )
    return judged(NAME, findings, f"frequencies equal to {off:.0e}, tables to {apart:.0e}")


def _frequencies(rotary: Untyped, expected: Untyped) -> tuple[float, str]:
    """The largest relative distance of a buffer, and whose. Of a scaling that changes with the
    length only what it starts from stays."""
    worst, where = 0.0, "inv_freq"
    for name, right in expected.named_buffers():
        if "inv_freq" not in name or (_changes(rotary) and "original_" not in name):
            continue
        found = getattr(rotary, name, None)
        if found is None or found.shape != right.shape:
            return math.inf, name
        apart = float(((found.float().cpu() - right).abs() / right.abs()).max())
        if not apart <= worst:
            worst, where = apart if apart == apart else math.inf, name
    return worst, where


def _changes(rotary: Untyped) -> bool:
    kinds = rotary.rope_type
    names = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in names)


def _tables(rotary: Untyped, expected: Untyped, dtype: torch.dtype, device: torch.device) -> float:
    """How far the engine's tables are from a fresh module's."""
    positions = Positions(rotary, dtype, device)
    kinds = rotary.rope_type
    worst = 0.0
    length = min(_TOKENS, positions.stable_length or _TOKENS)
    places = torch.arange(length, device=device)[None]
    x = torch.empty(1, 0, dtype=torch.float32, device=device)
    for name in kinds if isinstance(kinds, dict) else [None]:
        table = positions.table(name, positions.era(length), length)
        right = expected(x, places) if name is None else expected(x, places, name)
        half = right[0].shape[-1] // 2
        # Prompts are rotated by the first two, single tokens by their doubles.
        doubled = (table.doubled[:, 0, :half], table.doubled[:, 1, half:])
        pairs = zip((table.cos, table.sin, *doubled), (*right, *right), strict=True)
        for one, other in pairs:
            apart = float((one[:length] - other[0, :, :half]).abs().max())
            worst = apart if not apart <= worst else worst
    return worst
