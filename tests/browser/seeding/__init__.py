"""Realistic jobs, curves, samples and files, written directly to the database and the store.

A service under test shows them as if workers had reported them. Nothing here depends on pages.
"""

from .hostile import HOSTILE, PWNED
from .large import Large, fill_large
from .world import World, fill

__all__ = ["HOSTILE", "PWNED", "Large", "World", "fill", "fill_large"]
