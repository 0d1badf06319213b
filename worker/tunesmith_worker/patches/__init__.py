"""Our kernels in place of a model's own modules: on instances, reversible, reported."""

from .compiled import CompiledLayers
from .patch import MECHANISMS, Patched, patch, why_stock_attention
from .report import PatchReport

__all__ = ["MECHANISMS", "CompiledLayers", "PatchReport", "Patched", "patch", "why_stock_attention"]
