"""State of a vLLM server that `WeightReceiver` and `RequestSampler` share, in one process."""

from __future__ import annotations

weights = ""
"""Id of the weights that a trainer has loaded last; empty for the base model."""
has_sampler = False
"""True if vLLM samples with `RequestSampler`."""
