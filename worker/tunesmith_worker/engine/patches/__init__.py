"""Our kernels in place of a model's own modules: on instances, reversible, reported."""

from .compiled import CompiledLayers, is_compile_error
from .patch import MECHANISMS, Patched, patch, why_stock_attention
from .report import PatchReport

__all__ = [
    "MECHANISMS",
    "CompiledLayers",
    "PatchReport",
    "Patched",
    "is_compile_error",
    "patch",
    "why_stock_attention",
]
