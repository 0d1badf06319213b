"""Plan the memory of a rollout by vLLM in the trainer's process."""

from __future__ import annotations

from typing import Any

from tunesmith_worker.rundir.process import SpawnSettings

from ..plan import MAX_ROWS, USABLE_SHARE, RolloutDoesNotFit, RolloutPlan

Untyped = Any  # Any: transformers is not typed

BLOCK = {"cpu": 128, "cuda": 16}
"""Number of tokens per block of vLLM's cache of attention keys and values."""
_SPARE_BLOCKS = 2
"""Number of cache blocks that each completion needs besides its full blocks: an incomplete block,
and a block that vLLM keeps empty."""


def plan_vllm_rollout(
    model: Untyped, *, rows: int, prompt_tokens: int, max_tokens: int, free: int
) -> RolloutPlan:
    """Plan a rollout by vLLM that needs at most `free` bytes; see `plan_rollout`. Raises
    RolloutDoesNotFit.

    In the trainer's process, vLLM has its own copy of the weights. Between rollouts, vLLM frees all
    its memory on a GPU, but on a CPU only its cache of attention keys and values.
    """
    if server_address() is not None:
        return RolloutPlan(
            weights="merged",
            max_rows=rows,
            reason="a vLLM server has its own memory",
            row_tokens=prompt_tokens + max_tokens,
            free_bytes=free,
        )
    usable = int(free * USABLE_SHARE)
    copy = sum(map(_elements, model.parameters())) * model.dtype.itemsize
    device = next(model.parameters()).device
    row = cache_bytes(model, prompt_tokens + max_tokens, device.type)
    fitting = (usable - copy) // row
    if fitting < 1:
        raise RolloutDoesNotFit(
            f"vLLM needs {copy:,} bytes for its copy of the weights and {row:,} bytes for each "
            f"completion of {prompt_tokens} prompt and {max_tokens} completion tokens, but only "
            f"{usable:,} bytes are free: use shorter completions, or set "
            "recipe.rollout.fast_inference to false"
        )
    return RolloutPlan(
        weights="merged",
        max_rows=int(max(1, min(rows, MAX_ROWS, fitting))),
        reason=f"vLLM's copy of the weights needs {copy >> 20:,} MiB",
        copy_bytes=copy,
        row_bytes=row,
        row_tokens=prompt_tokens + max_tokens,
        free_bytes=free,
    )


def server_address() -> tuple[str, str] | None:
    """Return URL and API key of the vLLM server in the worker's settings; None without server."""
    settings = SpawnSettings.from_environment()
    if settings.rollout_url is None:
        return None
    return settings.rollout_url, settings.rollout_token or ""


def _elements(parameter: Untyped) -> int:
    quantised = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if quantised is None else quantised.shape.numel())


def cache_bytes(model: Untyped, tokens: int, device: str) -> int:
    """Return the size in bytes of vLLM's cache for a prompt and its completion with `tokens` tokens
    in total."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    block = BLOCK[device]
    blocks = -(-tokens // block) + _SPARE_BLOCKS
    per_token = 2 * config.num_hidden_layers * kv_heads * head_dim * model.dtype.itemsize
    return int(blocks * block * per_token)
