"""Several weights side by side in one tensor, so that one GEMM serves them all.

The tensor owns the memory and the parameters become views of it: nothing is held twice, an
optimiser's in-place update is seen by both, and saving writes what it always wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class FusedWeight:
    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """`parameters`: [out_i, in], of one dtype on one device."""
        self._parameters = list(parameters)
        self._fuse()

    def get(self) -> torch.Tensor:
        """[sum of out_i, in]. Fused anew where somebody has given a parameter other memory
        (`.to()`, `load_state_dict(assign=True)`)."""
        places = [parameter.data_ptr() for parameter in self._parameters]
        if places != self._places:
            self._fuse()
        return self._whole

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.data = parameter.data.clone()

    def _fuse(self) -> None:
        with torch.no_grad():
            self._whole = torch.cat([parameter.data for parameter in self._parameters])
            sizes = [len(parameter) for parameter in self._parameters]
            for parameter, view in zip(self._parameters, self._whole.split(sizes), strict=True):
                parameter.data = view
        self._places = [parameter.data_ptr() for parameter in self._parameters]
