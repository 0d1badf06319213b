"""Models that are compared after training: base, tuned, best checkpoint and last step.

With LoRA, there is only one model in memory: the base model is the tuned model with the adapter
switched off. The values of a stored adapter temporarily replace the trained values. With full
tuning, the base model and stored weights are read into a second model if memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file

from tunesmith_schema.evaluation import ModelName
from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.engine.memory.retry import release_cached_memory
from tunesmith_worker.engine.model.adapters import adapter_tensors
from tunesmith_worker.engine.model.softcap import keep_softcap
from tunesmith_worker.engine.patches.own_head import OwnHead, check_head
from tunesmith_worker.engine.patches.trl_compat import add_scoring_head
from tunesmith_worker.trainer.methods.reference import AdapterReference, no_bias_warning

Untyped = Any  # Any: transformers and PEFT are not typed

_SPARE = 1.25
"""Free memory that a second model needs, as a multiple of the size of its weights."""


class LeftOut(Exception):
    """Raised if a model cannot be evaluated; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    name: ModelName
    step: int | None
    """Optimiser step of the weights; None for the base model."""
    use: Callable[[], AbstractContextManager[Untyped]]
    """Function that returns a context manager, which yields the model in evaluation mode.

    Raises LeftOut if the model cannot be evaluated.
    """


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Steps and folders of the weights that a run can evaluate after training."""

    last_step: int
    result_step: int
    """Step of the job's result."""
    result: Path
    """Folder of the job's result."""
    best_step: int | None = None
    """Step of the best checkpoint, if it is neither the result nor the last step."""
    best: Path | None = None
    """Folder of the best checkpoint."""
    last: Path | None = None
    """Folder of the last step's weights; None if the model in memory has these weights."""


def lora_models(
    model: Untyped, reference: AdapterReference, weights: Weights
) -> list[EvaluatedModel]:
    """Return the models of a LoRA run. `model`: the trained PEFT model."""

    @contextmanager
    def base() -> Iterator[Untyped]:
        with _evaluating(model), reference.running(), no_bias_warning(), model.disable_adapter():
            yield model

    def stored(folder: Path) -> Callable[[], AbstractContextManager[Untyped]]:
        return lambda: _stored_adapter(model, folder)

    return _in_order(weights, lambda: _evaluating(model), base, stored)


def full_models(
    model: Untyped, base_path: str, weights: Weights, *, base_refusal: str | None
) -> list[EvaluatedModel]:
    """Return the models of a full tuning run. `model`: the trained model. `base_path`: folder or
    Hugging Face id of the base model. `base_refusal`: reason why the base model cannot be
    evaluated."""

    @contextmanager
    def base() -> Iterator[Untyped]:
        if base_refusal is not None:
            raise LeftOut(base_refusal)
        with _second_model(model, base_path) as second:
            yield second

    def stored(folder: Path) -> Callable[[], AbstractContextManager[Untyped]]:
        @contextmanager
        def use() -> Iterator[Untyped]:
            if not folder.is_dir():
                raise LeftOut("the weights of the model could not be saved")
            with _second_model(model, str(folder)) as second:
                yield second

        return use

    return _in_order(weights, lambda: _evaluating(model), base, stored)


Use = Callable[[], AbstractContextManager[Untyped]]


def _in_order(
    weights: Weights, in_memory: Use, base: Use, stored: Callable[[Path], Use]
) -> list[EvaluatedModel]:
    ends_with_result = weights.result_step == weights.last_step or weights.last is not None
    tuned = in_memory if ends_with_result else stored(weights.result)
    last = in_memory if weights.last is None else stored(weights.last)
    models = [
        EvaluatedModel(name="tuned", step=weights.result_step, use=tuned),
        EvaluatedModel(name="base", step=None, use=base),
    ]
    if weights.result_step != weights.last_step:
        models.append(EvaluatedModel(name="last", step=weights.last_step, use=last))
    if weights.best is not None:
        models.append(EvaluatedModel(name="best", step=weights.best_step, use=stored(weights.best)))
    return models


@contextmanager
def _evaluating(model: Untyped) -> Iterator[Untyped]:
    was_training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(was_training)


@contextmanager
def _stored_adapter(model: Untyped, folder: Path) -> Iterator[Untyped]:
    """Within this block, the model has the adapter that is stored in `folder`; afterwards, the
    model has its own adapter again."""
    own = {name: tensor.clone() for name, tensor in adapter_tensors(model).items()}
    try:
        peft.set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
        with _evaluating(model):
            yield model
    finally:
        peft.set_peft_model_state_dict(model, own)


@contextmanager
def _second_model(model: Untyped, path: str) -> Iterator[Untyped]:
    """Read weights into a second model with the same device and number format. Raises LeftOut if
    the model cannot be evaluated."""
    device, dtype = next(model.parameters()).device, model.dtype
    needed = int(_SPARE * sum(p.numel() for p in model.parameters()) * dtype.itemsize)
    free = read_free_memory(device, 0).free
    if needed > free:
        raise LeftOut(f"a second model needs {needed:,} bytes of memory, and {free:,} are free")
    second = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, trust_remote_code=False, use_safetensors=True
    ).to(device)
    keep_softcap(second)
    try:
        add_scoring_head(second)
        if check_head(second):
            OwnHead(second)
        yield second.eval()
    finally:
        del second
        release_cached_memory()


def free_training_memory(trainer: Untyped) -> None:
    """Delete the gradients and the optimiser's state, which the evaluation does not need."""
    trainer.model.zero_grad(set_to_none=True)
    if trainer.optimizer is not None:
        trainer.optimizer.state.clear()
    if torch.cuda.is_available():
        release_cached_memory()
