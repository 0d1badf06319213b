"""Last step of a run: read the saved result and prove that its files contain the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_schema.verification import VERIFICATION_FILE, Arithmetic, Verification
from tunesmith_worker.engine.model.adapters import SavedWeights
from tunesmith_worker.engine.model.base_model import weights_dtype
from tunesmith_worker.engine.model.probe import PROBE_FILE
from tunesmith_worker.engine.patches import Patched
from tunesmith_worker.engine.verify import (
    RULE,
    Comparison,
    ResultMismatch,
    arithmetic_of,
    check_base_name,
    compare_folder,
    load_adapter,
    load_full,
    structure_kept,
    unwrap,
    verified_files,
)
from tunesmith_worker.rundir.errors import RunError, error_text
from tunesmith_worker.rundir.fingerprint import fingerprint
from tunesmith_worker.rundir.paths import file_hash, write_json
from tunesmith_worker.trainer.checkpoints.identity import made_with

from .context import RunContext
from .load import LoadedModel

Untyped = Any  # Any: transformers and peft are not typed

_HINT = (
    "The result is not published; its files stay in the run directory. The next attempt trains "
    "again from the last resume point. If the error repeats, check the worker's disk, and report "
    "the error with the job's events."
)


def read_back(
    context: RunContext,
    loaded: LoadedModel,
    patched: Patched | None,
    step: int,
    saved: SavedWeights,
) -> bool:
    """Read the result back, compare it with the record of the trained model
    (engine/model/probe.py), and write verification.json.

    The kernels are removed from the model and not added again, because an error in adding the
    kernels could hide a mismatch. After the call, a fully tuned model has the weights from the
    files.

    Raises RunError `result_mismatch` if the files do not contain the trained model. If the result
    cannot be read back, write a warning and return False, because a failed read does not prove that
    the files are wrong.
    """
    try:
        if patched is not None:
            patched.undo()
        comparison = _compare(context, loaded, saved)
    except ResultMismatch as error:
        raise RunError(
            ErrorCode.RESULT_MISMATCH,
            f"The saved result is not the trained model: {error}.",
            category=ErrorCategory.INFRASTRUCTURE,
            hint=_HINT,
        ) from error
    except Exception as error:  # any model code may fail here
        context.events.message(
            "The saved result was not compared with the trained model "
            f"({type(error).__name__}: {error_text(error)}). The result is published without "
            f"{VERIFICATION_FILE}; compare it with {PROBE_FILE} before use.",
            level="warn",
        )
        return False
    verification = _verification(context, loaded, step, comparison)
    write_json(context.run.adapter / VERIFICATION_FILE, verification)
    context.events.message(
        comparison.summary(),
        data={"max_difference": comparison.max_difference, "tolerance": comparison.tolerance},
    )
    return True


def _compare(context: RunContext, loaded: LoadedModel, saved: SavedWeights) -> Comparison:
    folder, model = context.run.adapter, loaded.model
    probe = folder / PROBE_FILE
    if not probe.is_file():
        raise ResultMismatch(f"{PROBE_FILE} is missing")
    if saved.probe_sha256 is not None and file_hash(probe) != saved.probe_sha256:
        raise ResultMismatch(f"{PROBE_FILE} has changed since the weights were saved")
    arithmetic = _arithmetic(context, loaded)
    if not isinstance(model, peft.PeftModel):
        dtype = weights_dtype(loaded.load_plan)
        return compare_folder(folder, lambda: _reload_full(model, folder, dtype), arithmetic)
    check_base_name(folder, context.spec.model)
    with structure_kept(model):
        base = unwrap(model)
        return compare_folder(folder, lambda: load_adapter(base, folder), arithmetic)


def _reload_full(model: Untyped, folder: Path, dtype: torch.dtype) -> Untyped:
    """Free the memory of the trained weights, load the result with plain transformers, and put the
    loaded weights into `model`."""
    device = model.device
    for parameter in model.parameters():
        parameter.grad = None
        parameter.data = parameter.data.new_empty(0)
    stock = load_full(folder, dtype, device)
    saved = dict(stock.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameter.data = saved[name].data
    return stock


def _arithmetic(context: RunContext, loaded: LoadedModel) -> Arithmetic:
    dtype = weights_dtype(loaded.load_plan)
    return arithmetic_of(dtype, context.spec.recipe.quantization, loaded.model.device)


def _verification(
    context: RunContext, loaded: LoadedModel, step: int, comparison: Comparison
) -> Verification:
    spec = context.spec
    base = fingerprint(spec.model_path)
    return Verification(
        kind="full" if spec.recipe.tuning == "full" else "lora",
        step=step,
        base_model=spec.model,
        base_fingerprint=None if base.startswith("hub:") else base,
        dtype="fp32" if loaded.load_plan.precision == "fp32" else "bf16",
        quantization=spec.recipe.quantization,
        vocabulary=loaded.new_tokens.rows,
        arithmetic=_arithmetic(context, loaded),
        probe=comparison.rows,
        max_difference=comparison.max_difference,
        tolerance=comparison.tolerance,
        rule=RULE,
        made_with=made_with(),
        files=verified_files(context.run.adapter),
    )
