"""Load saved weights with plain PEFT and transformers, and compare their logits with a probe.

The probe is a file with token sequences and the trained model's logits for these sequences."""

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
