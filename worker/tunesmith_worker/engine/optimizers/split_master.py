"""AdamW on split masters: bf16 weights plus the low 16 bits of their fp32 masters.

With the same gradients, a bf16 weight plus its low bits equals the fp32 weight of
torch.optim.AdamW(fused=True), bit for bit. Each parameter takes 12 bytes: 2 for the weight, 2 for
the low bits and 8 for the two moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, overload

import torch

from tunesmith_kernels.adamw import AdamW, adamw_
from tunesmith_kernels.error_word import adamw_error_word_, join_words, tied_to_odd

State = dict[str, Any]  # Any: tensors and plain numbers
DTYPES = (torch.bfloat16, torch.float32)


class SplitMasterAdamW(torch.optim.Optimizer):
    """AdamW for bf16 parameters with split masters; fp32 parameters use plain AdamW.

    As in torch's fused optimisers, `found_inf` is an fp32 scalar on the device. If `found_inf` is
    1, a step increases only the step count and changes neither weights nor moments. The state's key
    `error` holds the low 16 bits of the masters; resume points use this name too."""

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],  # Any: torch's groups
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **more: float,
    ) -> None:
        """Raises ValueError unless all parameters are contiguous and in bf16 or fp32."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **more}
        self.found_inf: torch.Tensor | None = None
        super().__init__(params, defaults)

    def add_param_group(self, param_group: State) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dtype not in DTYPES or not parameter.is_contiguous():
                raise ValueError(
                    f"parameters must be contiguous, in bf16 or fp32; got {parameter.dtype} "
                    f"{list(parameter.shape)}"
                )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, (group, parameter) in enumerate(self._parameters()):
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state |= self.fresh(parameter)
            state["step"] += 1
            beta1, beta2 = group["betas"]
            spec = AdamW(
                lr=float(group["lr"]),
                beta1=beta1,
                beta2=beta2,
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                step=state["step"],
            )
            weight, grad = parameter.data.view(-1), parameter.grad.reshape(-1)
            self._update(weight, grad, state, spec, group, index)
        return loss

    def master(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a parameter's fp32 master in the parameter's shape."""
        error = self.state[parameter].get("error")
        if error is None:
            return parameter.detach().float()
        return join_words(parameter.detach(), error.view(parameter.shape))

    @contextmanager
    def rounded_to_even(self) -> Iterator[None]:
        """Within this block, round each fp32 master to bf16 with ties to even, like torch.

        The model is saved within this block. The parameters are restored after the block."""
        moved = []
        for _, parameter in self._parameters():
            error = self.state[parameter].get("error")
            if error is not None:
                bits = parameter.data.view(-1)
                at = tied_to_odd(bits, error).nonzero().squeeze(1)
                moved.append((bits.view(torch.int16), at))
        for bits, at in moved:
            bits[at] -= 1
        try:
            yield
        finally:
            for bits, at in moved:
                bits[at] += 1

    def load_state_dict(self, state_dict: State) -> None:
        """Load a state dict. Unlike torch's method, do not cast the state to the parameters'
        dtype."""
        super().load_state_dict(state_dict)
        saved = state_dict["state"]
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        for number, (_, parameter) in zip(numbers, self._parameters(), strict=True):
            for name, value in saved.get(number, {}).items():
                if isinstance(value, torch.Tensor):
                    value = value.to(parameter.device, copy=True)
                self.state[parameter][name] = value

    def _parameters(self) -> Iterator[tuple[State, torch.Tensor]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                yield group, parameter

    def fresh(self, parameter: torch.Tensor) -> State:
        """Return a parameter's state before its first update."""
        return {"step": 0, **self._fresh(parameter)}

    def _fresh(self, parameter: torch.Tensor) -> State:
        size, device = parameter.numel(), parameter.device
        state = {
            name: torch.zeros(size, dtype=torch.float32, device=device)
            for name in ("exp_avg", "exp_avg_sq")
        }
        if parameter.dtype == torch.bfloat16:
            state["error"] = torch.zeros(size, dtype=torch.int16, device=device)
        return state

    def _update(
        self,
        weight: torch.Tensor,
        grad: torch.Tensor,
        state: State,
        spec: AdamW,
        group: State,
        index: int,
    ) -> None:
        """Update one parameter in place. `weight` and `grad`: [n]. `index`: position of the
        parameter among all parameters."""
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if "error" in state:
            adamw_error_word_(weight, state["error"], grad, m, v, spec, self.found_inf)
        else:
            adamw_(weight, grad, m, v, spec, self.found_inf)
