"""Loading of the base model and its adapter, the first part of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import transformers

from tunesmith_schema import PatchName
from tunesmith_worker.engine.model.adapters import adapter_dtype, attach_lora, check_saving
from tunesmith_worker.engine.model.base_model import Base, find_device, load_base
from tunesmith_worker.engine.model.embeddings import NewTokens, add_tokens, train_token_rows
from tunesmith_worker.engine.optimizers.choose import describe_precision
from tunesmith_worker.engine.patches.unused import unused_modules, unused_parameters
from tunesmith_worker.rundir.errors import explain_model_errors
from tunesmith_worker.rundir.plan import Device, LoadPlan
from tunesmith_worker.trainer.auto.device_memory import held_bytes, used_gpu
from tunesmith_worker.trainer.auto.resolve_sft import plan_load, plan_patches

from .context import RunContext

Untyped = Any  # Any: transformers and PEFT are not typed


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    device: Device
    load_plan: LoadPlan
    base: Base
    new_tokens: NewTokens
    model: Untyped
    """Base model, with the adapter if one is trained."""
    patches: frozenset[PatchName]


def load(context: RunContext) -> LoadedModel:
    run, spec, events, choices = context.run, context.spec, context.events, context.plan.choices
    recipe, full = spec.recipe, spec.recipe.tuning == "full"
    with events.phase("load"):
        transformers.utils.logging.disable_progress_bar()
        transformers.set_seed(spec.seed)
        device = find_device()
        context.device_use.begin(used_gpu())
        context.device_use.make_room()
        load_plan = plan_load(recipe, device, choices)
        base = load_base(spec, load_plan)
        context.device_use.settle(held_bytes())
        with explain_model_errors(base.architecture):
            new_tokens = add_tokens(base.model, base.tokenizer, recipe.add_tokens, events)
            base = replace(base, unused=_find_unused(context, base))
            if full:
                model = base.model
                for name in base.unused:
                    model.get_parameter(name).requires_grad_(False)
            else:
                model = attach_lora(base.model, recipe, choices, base.unused)
        if full:
            naive = load_plan.precision == "bf16"
            events.message(
                describe_precision(load_plan.precision), level="warn" if naive else "info"
            )
        if full or new_tokens.ids:
            check_saving(run.root, model, base.tokenizer)
        return LoadedModel(
            device=device,
            load_plan=load_plan,
            base=base,
            new_tokens=new_tokens,
            model=model,
            patches=plan_patches(recipe, choices),
        )


def _find_unused(context: RunContext, base: Base) -> tuple[str, ...]:
    """Return the names of the modules that the loss on text does not use. In full tuning, return
    the names of the parameters that the loss does not use."""
    full = context.spec.recipe.tuning == "full"
    names = tuple((unused_parameters if full else unused_modules)(base.model))
    if names:
        what = "parameters that do not train" if full else "modules without an adapter"
        context.events.message(
            f"{base.architecture} has {len(names)} {what}, because the loss on text does not use "
            f"them: {_some(names)}."
        )
    return names


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def train_rows(context: RunContext, loaded: LoadedModel, used: Sequence[int]) -> None:
    """Train the embedding rows of tokens that occur in the data but were never trained in the base
    model.

    `used`: token ids of the data."""
    recipe = context.spec.recipe
    if not recipe.from_scratch:
        train_token_rows(
            loaded.model,
            loaded.base.tokenizer,
            used,
            loaded.new_tokens,
            context.events,
            adapter_itemsize=adapter_dtype(recipe).itemsize,
        )
