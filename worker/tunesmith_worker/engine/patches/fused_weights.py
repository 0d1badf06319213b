"""Several weights side by side in one tensor, so that one GEMM serves them all.

The tensor owns the memory and the parameters become views of it: nothing is held twice, an
optimiser's in-place update is seen by both, and saving writes what it always wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class FusedWeight:
    def __init__(self, modules: Sequence[torch.nn.Linear]) -> None:
        """`modules`: weights [out_i, in]."""
        self._modules = list(modules)
        self._fuse()

    def get(self) -> torch.Tensor | None:
        """[sum of out_i, in]; None while the weights differ in dtype or device. Fused anew where
        somebody has given one other memory (`.to()`, `load_state_dict(assign=True)`)."""
        if self._now() != self._places:
            self._fuse()
        return self._whole

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        with torch.no_grad():
            for module in self._modules:
                module.weight.data = module.weight.data.clone()

    def _now(self) -> list[int]:
        return [module.weight.data_ptr() for module in self._modules]

    def _fuse(self) -> None:
        weights = [module.weight for module in self._modules]
        self._whole = None
        if len({(weight.dtype, weight.device) for weight in weights}) == 1:
            with torch.no_grad():
                self._whole = torch.cat([weight.data for weight in weights])
                sizes = [len(weight) for weight in weights]
                for weight, view in zip(weights, self._whole.split(sizes), strict=True):
                    weight.data = view
        self._places = self._now()
