"""Compare a folder of saved weights with its probe.safetensors, which holds logits and checksums of
the trained model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft

from tunesmith_schema.verification import Arithmetic
from tunesmith_worker.engine.model.probe import lora_scaling, run_probe, weight_checksums

from .compare import (
    Comparison,
    ResultMismatch,
    compare_checksums,
    compare_logits,
    compare_scaling,
)
from .files import WEIGHTS, name_in_file, read_probe, tensor_checksums
from .load import raise_unrelated
from .tolerance import tolerance

Untyped = Any  # Any: transformers and peft are not typed


def compare_folder(folder: Path, load: Callable[[], Untyped], arithmetic: Arithmetic) -> Comparison:
    """Load the saved weights and compare tensors, scaling and logits with probe.safetensors.

    `load`: loads the folder with plain PEFT or transformers. Raises ResultMismatch."""
    probe = read_probe(folder)
    adapter = (folder / WEIGHTS).exists()
    if adapter:
        trained = {name_in_file(name): checksum for name, checksum in probe.tensors.items()}
        compare_checksums(trained, tensor_checksums(folder), WEIGHTS)
    elif probe.scaling:
        raise ResultMismatch(f"{WEIGHTS} is missing")
    model = load()
    if isinstance(model, peft.PeftModel):
        if probe.tensors:  # else an earlier version wrote the probe
            compare_scaling(lora_scaling(model), probe.scaling)
    else:
        compare_checksums(probe.tensors, weight_checksums(model), "the loaded model")
    try:
        logits = run_probe(model, probe.input_ids)
    except Exception as error:  # a wrong model can raise anything
        raise_unrelated(error)
        raise ResultMismatch(
            f"the loaded model cannot compute logits: {type(error).__name__}: {error}"
        ) from error
    largest = tolerance(model, probe.logits, arithmetic)
    difference = compare_logits(logits, probe.logits, largest)
    return Comparison(max_difference=difference, tolerance=largest, rows=probe.rows)
