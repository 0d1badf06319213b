"""Checks of trained parameters, optimizer, learning rates, finite weights and embeddings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.model.embeddings.matrices import Matrices, Matrix

from .check_context import CheckContext, Untyped
from .findings import REPORT_HINT, Finding, Outcome, make_outcome

_SHOWN = 3
_SCHEDULE_SAMPLE = 200
"""Number of evenly spaced steps at which the learning rate is read."""


def check_trained_parameters(context: CheckContext) -> Outcome:
    """Check `trained_parameters`: adapters are attached and train; base weights are frozen."""
    model = context.model
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    faults = (
        _frozen(model, context.base.unused) if context.full else _adapter_faults(model, trained)
    )
    findings = [_finding("trained_parameters", what, names) for what, names in faults if names]
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return make_outcome(
        "trained_parameters", findings, f"{numbers:,} parameters in {len(trained)} tensors"
    )


def check_optimizer(context: CheckContext) -> Outcome:
    """Check `optimizer`: each trained tensor occurs once, with a learning rate above 0."""
    optimizer, scheduler = _optimizer_and_scheduler(context)
    names = {id(p): name for name, p in context.model.named_parameters()}
    held = Counter(id(p) for group in optimizer.param_groups for p in group["params"])
    trained = {id(p) for p in context.model.parameters() if p.requires_grad}
    findings = [
        _finding("optimizer", what, sorted(names.get(id_, "an unknown tensor") for id_ in ids))
        for what, ids in (
            ("tensors train but are not in the optimizer", trained - held.keys()),
            ("tensors are in the optimizer but do not train", held.keys() - trained),
            ("tensors are in the optimizer twice", {id_ for id_, n in held.items() if n > 1}),
        )
        if ids
    ]
    highest = _highest_rates(scheduler, context.train_plan.total_steps)
    still = [
        index
        for index, (group, rate) in enumerate(zip(optimizer.param_groups, highest, strict=True))
        if group["params"] and not rate > 0
    ]
    if still:
        parameters = sum(len(optimizer.param_groups[index]["params"]) for index in still)
        findings.append(
            Finding(
                "optimizer",
                f"the learning rate of {parameters} of {len(trained)} tensors is "
                f"{highest[still[0]]} at all {context.train_plan.total_steps} steps (it must be "
                "above 0 at one step or more).",
                "Raise recipe.learning_rate, or set recipe.warmup_steps below the number of steps.",
                param="recipe.learning_rate",
            )
        )
    return make_outcome("optimizer", findings, f"learning rate up to {max(highest):.3g}")


def _finding(check: str, what: str, names: list[str]) -> Finding:
    return Finding(
        check,
        f"{len(names)} {what} (tolerance: 0): {', '.join(names[:_SHOWN])}"
        f"{', ...' if len(names) > _SHOWN else ''}.",
        REPORT_HINT,
        category=ErrorCategory.INFRASTRUCTURE,
    )


def _frozen(model: Untyped, unused: Collection[str]) -> list[tuple[str, list[str]]]:
    """List frozen tensors. `unused`: tensors that get no gradient and may be frozen."""
    names = [n for n, p in model.named_parameters() if not p.requires_grad and n not in unused]
    return [("tensors are frozen although recipe.tuning is 'full'", names)]


def _adapter_faults(model: Untyped, trained: set[str]) -> list[tuple[str, list[str]]]:
    config = model.peft_config["default"]
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LoraLayer)}
    own = {
        f"{name}.{parameter}"
        for name, layer in layers.items()
        for parameter, _ in layer.named_parameters()
        if parameter.startswith("lora_")
    }
    inactive = [
        name
        for name, layer in layers.items()
        if layer.disable_adapters or layer.merged or "default" not in layer.active_adapters
    ]
    return [
        ("layers in recipe.lora.target_modules have no adapter", _without_adapter(model, config)),
        ("adapters are switched off or merged", inactive),
        ("tensors of the adapter are frozen", sorted(own - trained)),
        ("tensors of the base model train", sorted(_unexpected(trained - own, config))),
    ]


def _without_adapter(model: Untyped, config: Untyped) -> list[str]:
    """List target layers that have no LoRA adapter. In `config`, PEFT has already replaced
    "all-linear" by layer names."""
    targets = config.target_modules
    if isinstance(targets, str):
        return []
    excluded = config.exclude_modules  # modules that rows of text do not use
    missing = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not _inside_peft(name):
            path = name.removeprefix("base_model.model.")
            if isinstance(excluded, str) and re.fullmatch(excluded, path):
                continue
            if any(path == target or path.endswith(f".{target}") for target in targets):
                missing.append(name)
    return missing


def _inside_peft(name: str) -> bool:
    parts = set(name.split("."))
    return bool(parts & {"base_layer", "lora_A", "lora_B", "original_module", "modules_to_save"})


def _unexpected(names: set[str], config: Untyped) -> list[str]:
    """Return the names of tensors that must not train. Rows of an embedding and whole matrices
    (embedding or head) may train; biases may train if the recipe trains biases."""
    biases = config.bias != "none"
    return [
        name
        for name in names
        if not any(part in name for part in ("trainable_tokens_", "modules_to_save"))
        and not (biases and name.endswith("bias"))
    ]


def _optimizer_and_scheduler(
    context: CheckContext,
) -> tuple[Any, Any]:  # Any: the Trainer's, untyped
    """Create optimizer and scheduler for a check; the trainer's attributes stay unchanged."""
    trainer, steps = context.trainer, context.train_plan.total_steps
    names = ("optimizer", "lr_scheduler", "_created_lr_scheduler")
    before = {name: getattr(trainer, name) for name in names}
    try:
        trainer.create_optimizer_and_scheduler(steps)
        return trainer.optimizer, trainer.lr_scheduler
    finally:
        for name, value in before.items():
            setattr(trainer, name, value)


def _highest_rates(scheduler: Untyped, steps: int) -> list[float]:
    """Return the highest learning rate of each parameter group over all steps."""
    every = max(1, steps // _SCHEDULE_SAMPLE)
    return [
        base * max(shape(step) for step in range(0, steps, every))
        for base, shape in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]


_BLOCK = 8192
"""Number of embedding rows to read at a time."""


def check_weights(context: CheckContext) -> Outcome:
    """Check `weights`: the sum of each tensor's elements is finite."""
    named = {n: p.detach() for n, p in context.model.named_parameters() if p.is_floating_point()}
    sums = torch.stack([weight.sum(dtype=torch.float32).cpu() for weight in named.values()])
    broken = [name for name, ok in zip(named, sums.isfinite().tolist(), strict=True) if not ok]
    findings = []
    if broken:
        findings.append(
            Finding(
                "weights",
                f"{len(broken)} of {len(named)} tensors contain NaN or infinity (tolerance: 0): "
                f"{', '.join(broken[:_SHOWN])}.",
                "Download the base model again. If you trained the model yourself, its training "
                "diverged: use an earlier checkpoint.",
                param="model",
            )
        )
    return make_outcome("weights", findings, f"{len(named)} tensors finite")


def check_embeddings(context: CheckContext) -> Outcome:
    """Check `embeddings`: used rows are not zero, and a tied head shares the embedding's memory."""
    causal = _causal(context.model)
    matrices = Matrices.of(causal)
    used = context.used_tokens
    findings = []
    for matrix in matrices.distinct:
        zero = _zero_rows(matrix, used)
        if not zero:
            continue
        names = context.base.tokenizer.convert_ids_to_tokens(zero[:_SHOWN])
        learns = _weight(matrix.module).requires_grad or _head_has_bias(matrices)
        findings.append(
            Finding(
                "embeddings",
                f"{len(zero)} of {len(used)} rows of {matrix.name} that the data uses are all "
                f"zero (tolerance: 0): {', '.join(map(repr, names))}.",
                "The model cannot distinguish these tokens: use a base model that was trained with "
                "these tokens, or other tokens in the chat template.",
                level="warn" if learns else "error",
                param="model",
            )
        )
    if _config_ties(causal) and not _shares(matrices):
        findings.append(
            Finding(
                "embeddings",
                "config.json ties the head to the embedding, but head and embedding are "
                "separate tensors.",
                "Report the fault: the saved model would differ from the trained one.",
                category=ErrorCategory.INFRASTRUCTURE,
            )
        )
    return make_outcome("embeddings", findings, f"{len(used)} tokens in use")


def _causal(model: Untyped) -> Untyped:
    return model.get_base_model() if isinstance(model, peft.PeftModel) else model


def _weight(module: Untyped) -> torch.Tensor:
    if isinstance(module, peft.utils.TrainableTokensWrapper):
        module = module.token_adapter.get_base_layer()
    if isinstance(module, peft.utils.ModulesToSaveWrapper):
        module = module.original_module
    weight: torch.Tensor = module.weight
    return weight


def _zero_rows(matrix: Matrix, used: list[int]) -> list[int]:
    weight = _weight(matrix.module)
    if not weight.is_floating_point():
        return []
    index = torch.tensor(used, device=weight.device)
    zero = [part[(weight.detach()[part] == 0).all(1)] for part in index.split(_BLOCK)]
    rows: list[int] = torch.cat(zero).tolist()
    return rows


def _head_has_bias(matrices: Matrices) -> bool:
    """Return True if the head has a bias. Single rows of a head with a bias cannot be trained
    (token_rows.py)."""
    return matrices.head is not None and getattr(matrices.head.module, "bias", None) is not None


def _config_ties(causal: Untyped) -> bool:
    """Return True if the configuration ties the head to the embedding and the model's class
    supports tied weights."""
    ties = getattr(causal.config.get_text_config(), "tie_word_embeddings", False)
    return bool(ties) and bool(getattr(causal, "_tied_weights_keys", None))


def _shares(matrices: Matrices) -> bool:
    if matrices.head is None:
        return True
    embedding, head = (_weight(m.module) for m in (matrices.embedding, matrices.head))
    return embedding.data_ptr() == head.data_ptr()
