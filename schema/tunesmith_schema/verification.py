"""verification.json: proof that the files of a result contain the model that was trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Request
from .documents import DOCUMENT_VERSION

VERIFICATION_FILE = "verification.json"
Arithmetic = Literal["fp32", "tf32", "bf16", "int8"]
"""Arithmetic of matrix multiplications. The allowed difference between the logits of the saved and
the trained model depends on the arithmetic."""
Quantization = Literal["none", "nf4", "int8"]


class VerifiedFile(Request):
    """One file of a verified result."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Verification(Request):
    """Content of verification.json. The trainer writes this file after it has loaded the saved
    result again."""

    document_version: int = Field(default=DOCUMENT_VERSION, ge=1)
    """Version of the document's format."""
    kind: Literal["lora", "full"]
    """Kind of weights. `lora`: a PEFT adapter; `full`: all weights."""
    step: int
    """Optimiser step of the weights."""
    base_model: str
    """Name of the base model. A LoRA adapter's adapter_config.json contains the same
    name."""
    base_fingerprint: str | None
    """Hash of the base model's files; of a large file, only samples are hashed. None for a model on
    the Hugging Face Hub."""
    dtype: Literal["fp32", "bf16"]
    """Dtype in which the check loaded the base model or the full weights."""
    quantization: Quantization
    """Quantization of the base model."""
    vocabulary: int
    """Number of rows of the embedding. The embedding of a base model with fewer rows must be
    resized before the adapter is loaded."""
    arithmetic: Arithmetic
    """Arithmetic in which the logits were computed."""
    probe: list[list[int]]
    """Token ids of the rows whose logits were compared; probe.safetensors has the logits."""
    max_difference: float
    """Largest difference between a logit of the model loaded from the files and the same logit of
    the trained model in memory."""
    tolerance: float
    """Largest difference that rounding can explain."""
    rule: str
    """Formula of the tolerance."""
    made_with: dict[str, str]
    """Versions of the libraries that wrote the files; the keys are library names."""
    files: dict[str, VerifiedFile]
    """Files of the result; the keys are file names."""
