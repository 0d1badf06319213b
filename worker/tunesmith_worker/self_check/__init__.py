"""Proof before the first step, and along the way, that a run learns what it should."""
