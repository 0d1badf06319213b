"""Part `precision`: full tuning in bf16 with split masters.

A split master stores an fp32 weight in two parts: the model's bf16 weight, and the low 16 bits of
the fp32 weight. The benchmark part has these cases.

`MODEL/bytes`: Bytes per parameter of weights and optimizer, in every precision.
`MODEL/time`: Step time with split masters / step time in plain bf16; a step is forward, backward,
    clipping and optimizer.
`MODEL/loss`: Relative difference between the loss of a precision and the fp32 loss, on held-out
    rows after 500 steps.

All loss runs start from the same random weights and use the same rows in the same order. The rows
are samples of one Markov chain.
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from typing import Any

from tunesmith_worker.rundir.process import quick_imports

with quick_imports():
    import torch
    from trl.trainer.utils import add_fused_lm_head

    from tunesmith_schema import Precision
    from tunesmith_worker.engine.memory.parameter_sizes import storage_bytes
    from tunesmith_worker.engine.optimizers.choose import optimizer_for
    from tunesmith_worker.engine.optimizers.fresh_state import make_state, state_bytes
    from tunesmith_worker.engine.patches import patch

    from .models import random_model
    from .order import PRECISION_MODELS
    from .parity import packed_batch
    from .serving import Case, serve
    from .timing import median_seconds

Untyped = Any  # Any: transformers is not typed
Result = dict[str, Any]  # Any: JSON

PRECISIONS: dict[str, Precision] = {
    "bf16_error_word": "bf16_split_master",
    "bf16_sr8": "bf16_sr8",
    "bf16": "bf16",
    "fp32": "fp32",
}
"""Precision for each key in the results."""
BYTES = ("bf16_error_word", "bf16_sr8", "bf16", "fp32")
LOSSES = ("fp32", "bf16_error_word", "bf16")
RATE = 1e-4
HELD_OUT = 8


class Trained:
    """Model and optimizer in one precision."""

    def __init__(self, name: str, precision: Precision, device: torch.device) -> None:
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        self.model = random_model(name, device, torch.float32).to(dtype)
        add_fused_lm_head(self.model)
        patch(self.model)
        kind, settings = optimizer_for(precision, full=True, learning_rate=RATE, seed=0) or (
            torch.optim.AdamW,
            {"lr": RATE, "fused": True},
        )
        self.optimizer: torch.optim.Optimizer = kind(self.model.parameters(), **settings)

    def step(self, batch: dict[str, Untyped]) -> object:
        self.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return None

    def loss(self, batch: dict[str, Untyped]) -> torch.Tensor:
        value: torch.Tensor = self.model(**batch, fused_lm_head=True, use_cache=False).loss
        return value


def bytes_a_parameter(name: str, device: torch.device) -> Result:
    result: Result = {}
    for key in BYTES:
        trained = Trained(name, PRECISIONS[key], device)
        make_state(trained.optimizer)
        held = storage_bytes(list(trained.model.parameters())) + state_bytes(trained.optimizer)
        result[key] = held / sum(p.numel() for p in trained.model.parameters())
        del trained
        _clean()
    return result


def step_time(name: str, device: torch.device) -> Result:
    lengths = (4096,) if device.type == "cuda" else (48, 16)
    both = {key: Trained(name, PRECISIONS[key], device) for key in ("bf16_error_word", "bf16")}
    vocabulary = both["bf16"].model.config.vocab_size
    batch = _batch(packed_batch(lengths, vocabulary, device), sum(lengths))
    runs = {key: partial(trained.step, batch) for key, trained in both.items()}
    seconds = median_seconds(runs, device, 10 if device.type == "cuda" else 1)
    return {"seconds": seconds, "ratio": seconds["bf16_error_word"] / seconds["bf16"]}


def final_loss(name: str, device: torch.device) -> Result:
    on_gpu = device.type == "cuda"
    steps, lengths = (500, (512,) * 8) if on_gpu else (4, (24, 24))
    losses = {}
    for key in LOSSES:
        trained = Trained(name, PRECISIONS[key], device)
        for step in range(steps):
            trained.step(_chain(step, trained, lengths, device))
        with torch.no_grad():
            held_out = [_chain(-1 - i, trained, lengths, device) for i in range(HELD_OUT)]
            losses[key] = sum(float(trained.loss(batch)) for batch in held_out) / HELD_OUT
        del trained
        _clean()
    exact = losses["fp32"]
    return {
        "steps": steps,
        "losses": losses,
        "relative": {key: loss / exact - 1 for key, loss in losses.items()},
    }


def _chain(
    seed: int, trained: Trained, lengths: tuple[int, ...], device: torch.device
) -> dict[str, Untyped]:
    """Sample rows from a Markov chain over 256 tokens. Each token has four successors; the first
    successor is the most likely."""
    batch = packed_batch(lengths, 256, device)
    draw = torch.Generator().manual_seed(seed + 1000)
    successors = torch.randint(256, (256, 4), generator=torch.Generator().manual_seed(7))
    weights = torch.tensor([0.7, 0.15, 0.1, 0.05])
    steps = torch.multinomial(weights, max(lengths) * len(lengths), True, generator=draw)
    steps = steps.view(len(lengths), -1)
    tokens = [torch.randint(256, (len(lengths),), generator=draw)]
    for at in range(max(lengths) - 1):
        tokens.append(successors[tokens[-1], steps[:, at]])
    ids = torch.stack(tokens, dim=1).reshape(1, -1).to(device)
    return _batch(batch | {"input_ids": ids, "labels": ids.clone()}, ids.numel())


def _batch(batch: dict[str, Untyped], tokens: int) -> dict[str, Untyped]:
    count = torch.tensor(tokens, device=batch["input_ids"].device)
    return batch | {"num_items_in_batch": count}


def _clean() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def cases(device: torch.device) -> dict[str, Case]:
    large, small = PRECISION_MODELS[device.type != "cuda"]
    return {
        f"{large}/bytes": partial(bytes_a_parameter, large, device),
        f"{large}/time": partial(step_time, large, device),
        f"{small}/loss": partial(final_loss, small, device),
    }


if __name__ == "__main__":
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sys.exit(serve(cases(where)))
