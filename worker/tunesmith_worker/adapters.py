"""LoRA on the model, and what was trained as files: a stock PEFT adapter, or the full weights.

safetensors and JSON only. Knows nothing of where the files go next.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import save_file

from tunesmith_schema import PROJECTIONS, ErrorCode, LoraRecipe

from .errors import RunError
from .folders import new_folder
from .plan import Choices

Untyped = Any  # Any: transformers and peft are not typed

PROBE_TOKENS = 64
PROBE_LOGITS = 8


def attach_lora(model: Untyped, recipe: LoraRecipe | None, choices: Choices) -> Untyped:
    """The model with a fresh adapter: B = 0, so it starts out equal to the base model."""
    lora = recipe or LoraRecipe()
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=_targets(model, lora, choices),
        bias=lora.bias,
        use_rslora=lora.use_rslora,
    )
    try:
        return peft.get_peft_model(model, config)
    except ValueError as error:  # PEFT names the target modules that the model lacks
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.lora does not fit the model: {error}",
            hint="Leave recipe.lora.target_modules at 'auto', or use names of its layers.",
            param="recipe.lora.target_modules",
        ) from error


def _targets(model: Untyped, lora: LoraRecipe, choices: Choices) -> str | list[str]:
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    found = [name for name in PROJECTIONS if name in names]
    given = lora.target_modules
    if isinstance(given, list):
        absent = [target for target in given if not _has(model, target)]
        if absent:  # PEFT is content when one of several exists
            raise RunError(
                ErrorCode.RECIPE_INVALID,
                f"recipe.lora.target_modules: the model has no layer {absent[0]!r}.",
                hint=f"It has {', '.join(found) or 'other names: use all-linear'}.",
                param="recipe.lora.target_modules",
            )
        _refuse_vocabulary_layers(model, given, found)
    return choices.settle(
        "lora.target_modules",
        given,
        found or "all-linear",
        "the projections that this model has" if found else "it has none of the usual projections",
    )


def _has(model: Untyped, target: str) -> bool:
    return any(_matches(name, target) for name, _ in model.named_modules())


def _matches(name: str, target: str) -> bool:
    """As PEFT finds a target."""
    return name == target or name.endswith(f".{target}")


def _refuse_vocabulary_layers(model: Untyped, targets: list[str], found: list[str]) -> None:
    """LoRA on the embedding or the head means merging, tying and saving of their own kinds."""
    head = model.get_output_embeddings()
    for target in targets:
        for name, module in model.named_modules():
            is_head = module is head
            if _matches(name, target) and (is_head or isinstance(module, torch.nn.Embedding)):
                raise RunError(
                    ErrorCode.RECIPE_INVALID,
                    f"recipe.lora.target_modules: {target!r} is the model's "
                    f"{'head' if is_head else 'embedding'}, which LoRA does not adapt.",
                    hint=f"Leave it out: adapters go on {', '.join(found) or 'linear layers'}. "
                    "Embeddings and heads are to get a mechanism of their own.",
                    param="recipe.lora.target_modules",
                )


def save_trained(
    path: Path,
    model: Untyped,
    tokenizer: Untyped,
    *,
    base_name: str,
    probe_ids: Sequence[int],
) -> None:
    """Write the adapter (or, with full tuning, the model) so that stock libraries load it."""
    with new_folder(path) as folder:
        if isinstance(model, peft.PeftModel):
            _save_lora(folder, model, base_name)
        else:
            model.save_pretrained(folder, safe_serialization=True)
            _save_tokenizer(folder, tokenizer)
        _save_probe(folder, model, probe_ids)


def check_saving(folder: Path, model: Untyped, tokenizer: Untyped) -> None:
    """Save everything but the weights once before training, so that what cannot be saved is known
    in the first minute and not after the last."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model.config.save_pretrained(scratch)
        model.generation_config.save_pretrained(scratch)
        _save_tokenizer(Path(scratch), tokenizer)


def _save_tokenizer(folder: Path, tokenizer: Untyped) -> None:
    # Several chat templates would become a folder of files: they stay in tokenizer_config.json.
    several = isinstance(tokenizer.chat_template, dict)
    tokenizer.save_pretrained(folder, save_jinja_files=not several)


def _save_lora(folder: Path, model: Untyped, base_name: str) -> None:
    # Not PeftModel.save_pretrained, which adds a model card, and asks the hub about embeddings.
    state = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"]
    path, mode = config.base_model_name_or_path, config.inference_mode
    # The name under which others know the base model, not a folder of this host.
    config.base_model_name_or_path, config.inference_mode = base_name, True
    config.save_pretrained(folder)
    config.base_model_name_or_path, config.inference_mode = path, mode
    _sort_targets(folder / "adapter_config.json")


def _sort_targets(path: Path) -> None:
    """PEFT writes a set, whose order differs from run to run: equal adapters get equal bytes."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _save_probe(folder: Path, model: Untyped, ids: Sequence[int]) -> None:
    """Some input and this very model's logits: whoever loads the files can check they are it."""
    input_ids_1T = torch.tensor([ids[:PROBE_TOKENS]], dtype=torch.int64)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        # The class's forward: accelerate hangs mixed precision on the instance's, and the files
        # hold the weights as they are.
        logits_1TV = (
            type(model)
            .forward(model, input_ids=input_ids_1T.to(model.device), use_cache=False)
            .logits
        )
    model.train(was_training)
    probe = {
        "input_ids": input_ids_1T,
        "logits": logits_1TV[:, -PROBE_LOGITS:].float().cpu().contiguous(),
    }
    save_file(probe, folder / "probe.safetensors")
