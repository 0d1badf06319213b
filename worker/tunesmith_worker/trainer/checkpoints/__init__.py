"""Resume points: all that a run needs to go on from a step, bit for bit, in one folder.

This package's `format`, `verify` and `identity` do not import torch: the supervisor uses them too.
"""
