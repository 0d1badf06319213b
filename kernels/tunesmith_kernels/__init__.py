"""Fused operations. Each operation has a plain torch reference, a fast CPU path and Triton kernels.

The package depends only on torch and triton. Importing the package loads neither the operations nor
triton.
"""

__all__: list[str] = []
