"""Fused operations: plain-torch references, fast CPU paths and Triton kernels, a file each.

Knows torch and triton, nothing of ours. Importing it imports neither an operation nor triton.
"""

__all__: list[str] = []
