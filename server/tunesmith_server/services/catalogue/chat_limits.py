"""Warnings before training if the inference server will not load the result.

Only vLLM refuses some results; our own inference process loads every model that we train.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunesmith_schema import ErrorCode, LoraRecipe, Recipe, RequestProblem
from tunesmith_server.core.settings import Settings

REASON = "chat_cannot_load"
"""Value of `data.reason` in the warning's event."""
_WHOLE_MATRICES = ("embed_tokens", "lm_head", "wte", "embed_out")
_TRAINS_ANYWAY = "you can train and download the model, but not chat with it"


def find_warnings(settings: Settings, recipe: Recipe) -> list[RequestProblem]:
    """Return the reasons why the inference server will not load a model of this recipe. The list is
    empty if TUNESMITH_INFERENCE_MAX_LORA_RANK is not set. The list is also empty if `serve` starts
    vLLM, because Tunesmith's own inference process then answers for the models that vLLM does not
    load."""
    if not settings.inference_max_lora_rank or settings.inference_vllm_model:
        return []
    return [
        RequestProblem(
            param=param, message=message, code=ErrorCode.MODEL_NOT_USABLE, hint=_TRAINS_ANYWAY
        )
        for param, message in _reasons(recipe, settings.inference_max_lora_rank)
    ]


def _reasons(recipe: Recipe, cap: int) -> Iterator[tuple[str, str]]:
    if recipe.tuning == "full":
        yield "recipe.tuning", "the inference server (vLLM) loads adapters only, not full weights"
        return
    lora = recipe.lora or LoraRecipe()
    if lora.r > cap:
        yield "recipe.lora.r", f"the inference server (vLLM) loads adapters up to rank {cap}"
    if recipe.add_tokens:
        yield (
            "recipe.add_tokens",
            "the inference server (vLLM) loads no adapters with embeddings of added tokens",
        )
    if lora.bias != "none":
        yield "recipe.lora.bias", "the inference server (vLLM) loads no adapters with biases"
    targets = lora.target_modules if isinstance(lora.target_modules, list) else []
    if whole := [name for name in targets if name in _WHOLE_MATRICES]:
        yield (
            "recipe.lora.target_modules",
            f"the inference server (vLLM) loads no adapters that replace {', '.join(whole)}",
        )
