"""Vocabulary of the tables of this folder."""

from __future__ import annotations

Rows = dict[str, dict[str, tuple[str, ...]]]
"""File or folder below tests/ -> test function -> its parameters that `make test` keeps."""

FAMILIES = (
    *("llama", "llama-lora", "llama-full", "*-llama"),
    *("*qwen3*", "*gemma2*", "*phi3*"),
)
"""Families that represent all others: plain, norms of query and key, caps, packed projections."""

ALL = ""
"""Every test of the file or folder."""
