"""Patches that replace a model's modules with our kernels: per instance, reversible, reported."""

from .patch import MECHANISMS, Patched, patch, stock_attention_reason
from .report import PatchReport

__all__ = [
    "MECHANISMS",
    "PatchReport",
    "Patched",
    "patch",
    "stock_attention_reason",
]
