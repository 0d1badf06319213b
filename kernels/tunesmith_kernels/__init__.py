"""Triton kernels with their plain-torch references, one file per operation.

Knows torch and triton, nothing of ours. No operation is fused yet: until the first one lands, the
trainer runs transformers' own modules, which stay the reference that every kernel is held to.
"""

__all__: list[str] = []
