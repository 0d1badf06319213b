"""Patch a model's modules with our kernels. Each module's patch is reversible and reported."""

from .patch import MECHANISMS, Patched, patch, stock_attention_reason
from .report import PatchReport

__all__ = [
    "MECHANISMS",
    "PatchReport",
    "Patched",
    "patch",
    "stock_attention_reason",
]
