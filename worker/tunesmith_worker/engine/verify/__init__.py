"""Load saved weights with plain PEFT and transformers, and compare their logits with the probe.

The probe contains token rows and the logits of the trained model for these rows."""

from .compare import Comparison, ResultMismatch
from .files import check_base_name, check_files, verified_files
from .folder import compare_folder
from .load import load_adapter, load_base, load_full, structure_kept, unwrap
from .tolerance import RULE, arithmetic_of

__all__ = [
    "RULE",
    "Comparison",
    "ResultMismatch",
    "arithmetic_of",
    "check_base_name",
    "check_files",
    "compare_folder",
    "load_adapter",
    "load_base",
    "load_full",
    "structure_kept",
    "unwrap",
    "verified_files",
]
