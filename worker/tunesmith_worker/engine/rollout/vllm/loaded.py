"""Module variables of a vLLM server's process that `WeightReceiver` and `RequestSampler` share."""

from __future__ import annotations

weights = ""
"""Id of the weights that a trainer sent last; empty if the server still has the base model's
weights."""
has_sampler = False
"""True if vLLM samples with `RequestSampler`."""
