"""Patch a model's modules with our kernels. Patches are per module, reversible and reported."""

from .compiled import CompiledLayers, is_compile_error
from .patch import MECHANISMS, Patched, patch, stock_attention_reason
from .report import PatchReport

__all__ = [
    "MECHANISMS",
    "CompiledLayers",
    "PatchReport",
    "Patched",
    "is_compile_error",
    "patch",
    "stock_attention_reason",
]
