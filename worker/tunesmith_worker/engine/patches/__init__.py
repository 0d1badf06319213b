"""Patch a model's modules with our kernels. Every patch can be undone, and the patch report counts
the patched modules."""

from .patch import MECHANISMS, Patched, patch, stock_attention_reason
from .report import PatchReport

__all__ = [
    "MECHANISMS",
    "PatchReport",
    "Patched",
    "patch",
    "stock_attention_reason",
]
