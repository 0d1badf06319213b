"""Errors for adapters that a server like vLLM does not load, with the remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tunesmith_schema import ErrorBody, ErrorCode
from tunesmith_server.core.errors import BadRequest, ServiceError

from .protocol import ServedModel
from .upstream import refusal

if TYPE_CHECKING:
    import httpx

_WORKER = re.compile(r"Worker failed with error '(.*)', please check", re.DOTALL)
"""vLLM's message, with status 500, about an adapter that its worker refuses."""
_KINDS = re.compile(
    r"LoRA rank|is unsupported LoRA weight|vLLM does not (yet )?support |"
    r"vLLM only supports modules_to_save|Adapter bias is not supported"
)
"""Texts in vLLM's error messages about an adapter that vLLM refuses. Users do not see vLLM's other
messages with status 500, because these may be about faults of vLLM or name files of its host."""
_OTHER_MODULES = "LoRA module is correct"
"""Text in vLLM's message about an adapter that changes unsupported modules. The whole message is
not shown, because it names a folder of vLLM's host."""
_OWN_PROCESS = "or leave TUNESMITH_INFERENCE_URL empty: our own process loads every model"


def adapter_refusal(model: ServedModel, reply: httpx.Response, error: ErrorBody) -> ServiceError:
    """Return our error for an adapter that the server did not load."""
    worker = _WORKER.search(error.message)
    reason = " ".join((worker[1] if worker else error.message).split())[:500]
    if "No adapter found" in error.message:
        return _not_usable(
            f"the inference server does not find the files of {model.id!r}",
            "let vLLM read the folder TUNESMITH_INFERENCE_CACHE at the same path as the API",
        )
    if reply.status_code == 404 or "LoRA is not enabled" in reason:
        return _not_usable(
            f"the inference server cannot load adapters, so it cannot answer as {model.id!r}",
            "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
        )
    if _OTHER_MODULES in reason:
        reason = "vLLM does not support adapters on one of the modules that this adapter changes"
    if reply.status_code in (400, 500) and _KINDS.search(reason):
        remedy = "start vLLM with a larger --max-lora-rank" if "LoRA rank" in reason else (
            "download the adapter and load it with PEFT"
        )  # fmt: skip
        return _not_usable(
            f"the inference server does not load {model.id!r}: {reason}",
            f"{remedy}, {_OWN_PROCESS}",
        )
    return refusal(reply, error)


def wrong_base(model: ServedModel, base: str, served: list[str]) -> ServiceError:
    """Return the error for an adapter on a base model that the inference server does not have.

    `served`: model names that the inference server lists. Without --served-model-name, vLLM lists
    paths of its host."""
    names = [name.rstrip("/").rpartition("/")[2] for name in served]
    return _not_usable(
        f"the inference server does not have {base!r}, the base model of {model.id!r}; it has "
        f"{', '.join(map(repr, names))}",
        f"start vLLM with this base model and --served-model-name {base}, {_OWN_PROCESS}",
    )


def _not_usable(message: str, hint: str) -> BadRequest:
    return BadRequest(ErrorCode.MODEL_NOT_USABLE, message, param="model", hint=hint)
