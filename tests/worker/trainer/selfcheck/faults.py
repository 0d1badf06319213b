"""Faults that tests add to a run. The self-check must find and name each of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer

from tunesmith_worker.engine.model import adapters
from tunesmith_worker.engine.patches import half_blocks, head, projections
from tunesmith_worker.trainer.data import prepare, tokens
from tunesmith_worker.trainer.data.tokens import IGNORED
from tunesmith_worker.trainer.methods import batches, config, sft
from tunesmith_worker.trainer.selfcheck import checks

Untyped = Any  # Any: transformers, PEFT and datasets are not typed
Plant = Callable[[pytest.MonkeyPatch], None]


def relabelled(change: Callable[[list[int], list[int]], list[int]]) -> Plant:
    """Change the labels of each row. `change` takes the row's token ids and labels and returns its
    labels."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = tokens.tokenize_file

        def wrong(*args: Untyped, **named: Untyped) -> Untyped:
            rows = right(*args, **named)
            features = rows.dataset.features
            dataset = rows.dataset.map(
                lambda row: {"labels": change(row["input_ids"], row["labels"])}, features=features
            )
            return replace(rows, dataset=dataset)

        monkeypatch.setattr(prepare, "tokenize_file", wrong)

    return plant


def no_labels(ids: list[int], labels: list[int]) -> list[int]:
    return [IGNORED] * len(ids)


def labels_one_too_early(ids: list[int], labels: list[int]) -> list[int]:
    return [*labels[1:], IGNORED]


def labels_of_the_prompt(ids: list[int], labels: list[int]) -> list[int]:
    """Put labels on the prompt instead of the answer, like a template with misplaced turns."""
    return [i if one == IGNORED else IGNORED for i, one in zip(ids, labels, strict=True)]


def no_end_label(ids: list[int], labels: list[int]) -> list[int]:
    """Mask the token that ends a turn. This happens if it is also the padding token and is masked
    by id."""
    end = 2  # <|im_end|> of the tiny tokenizer
    assert end in labels
    return [IGNORED if one == end else one for one in labels]


def after_attaching(change: Callable[[Untyped], None]) -> Plant:
    """Apply `change` to the model with its new adapter."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = adapters.attach_lora

        def wrong(*args: Untyped) -> Untyped:
            model = right(*args)
            change(model)
            return model

        monkeypatch.setattr("tunesmith_worker.trainer.load.attach_lora", wrong)

    return plant


def a_layer(model: Untyped) -> Untyped:
    return next(m for n, m in model.named_modules() if n.endswith("layers.1.mlp.down_proj"))


def freeze(model: Untyped) -> None:
    a_layer(model).lora_A.requires_grad_(False)


def switch_off(model: Untyped) -> None:
    a_layer(model)._disable_adapters = True


def bypass(model: Untyped) -> None:
    """Bypass an adapter that is present and trainable."""
    layer = a_layer(model)
    assert isinstance(layer, LoraLayer)
    layer.forward = layer.base_layer.forward


def scale_with_adapter(model: Untyped) -> None:
    """Make a new adapter change the output of the base model."""
    layer = a_layer(model)
    right = layer.forward
    layer.forward = lambda x: right(x) * (1.0 if layer.disable_adapters else 1.5)


def take_away(model: Untyped) -> None:
    block = next(m for n, m in model.named_modules() if n.endswith("layers.1.mlp"))
    block.down_proj = block.down_proj.base_layer


def train_a_base_weight(model: Untyped) -> None:
    a_layer(model).base_layer.weight.requires_grad_(True)


def put_a_nan(model: Untyped) -> None:
    with torch.no_grad():
        a_layer(model).base_layer.weight[3, 4] = float("nan")


def untie(model: Untyped) -> None:
    causal = model.get_base_model()
    copy = causal.lm_head.weight.detach().clone()
    causal.lm_head.weight = torch.nn.Parameter(copy, requires_grad=False)


def zero_a_used_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(
        model: Untyped, tokenizer: Untyped, used: list[int], *_: Untyped, **__: Untyped
    ) -> None:
        with torch.no_grad():
            model.get_base_model().get_input_embeddings().weight[used[5]] = 0.0

    monkeypatch.setattr("tunesmith_worker.trainer.load.train_token_rows", wrong)


def no_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    right = config.sft_config

    def wrong(*args: Untyped, **named: Untyped) -> Untyped:
        config = right(*args, **named)
        config.learning_rate = 0.0
        return config

    monkeypatch.setattr("tunesmith_worker.trainer.assemble_sft.sft_config", wrong)


def forget_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sft.SFTTrainer.create_optimizer

    def wrong(self: Untyped, model: Untyped = None) -> Untyped:
        optimizer = right(self, model)
        optimizer.param_groups[0]["params"].pop()
        return optimizer

    monkeypatch.setattr(sft.SFTTrainer, "create_optimizer", wrong)


def laid_out(change: Callable[[dict[str, Untyped]], dict[str, Untyped]]) -> Plant:
    """Apply `change` to each packed micro-batch."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = batches._end_to_end
        monkeypatch.setattr(batches, "_end_to_end", lambda rows: change(right(rows)))

    return plant


def one_segment(batch: dict[str, Untyped]) -> dict[str, Untyped]:
    ends = batch["cu_seq_lens_q"][[0, -1]]
    longest = int(ends[-1])
    return batch | {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def positions_cross(batch: dict[str, Untyped]) -> dict[str, Untyped]:
    """Shift the positions across the ends of rows. Counting on from row to row would not be a
    fault, because RoPE is relative."""
    return batch | {"position_ids": batch["position_ids"].roll(3, dims=1)}


def lose_labels(batch: dict[str, Untyped]) -> dict[str, Untyped]:
    labels = batch["labels"].clone()
    labels[0, -3:] = IGNORED
    return batch | {"labels": labels}


class _BackwardOff(torch.autograd.Function):
    """Multiplies the gradient by 1.01 and leaves forward unchanged."""

    @staticmethod
    def forward(ctx: Untyped, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Untyped, upstream: torch.Tensor) -> torch.Tensor:
        return upstream * 1.01


def forward_off(x: Untyped) -> Untyped:
    return x * 1.01


def backward_off(x: Untyped) -> Untyped:
    return _BackwardOff.apply(x)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def kernel(name: str, by: Callable[[Untyped], Untyped]) -> Plant:
    """Apply `by` to the result of a kernel."""
    where: Untyped = head if name == "token_log_probs" else half_blocks

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(where, name)

        def wrong(*args: Untyped, **named: Untyped) -> Untyped:
            found = right(*args, **named)
            if isinstance(found, torch.Tensor):
                return by(found)
            return found._replace(log_probs=by(found.log_probs))

        monkeypatch.setattr(where, name, wrong)

    return plant


def forget_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make our kernels compute down_proj without its adapter."""
    right = projections.read_projection

    def wrong(module: Untyped) -> Untyped:
        found = right(module)
        return replace(found, adapter=None) if module.in_features == 96 else found

    monkeypatch.setattr(projections, "read_projection", wrong)


def not_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the system call fail, because root may write anywhere."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(checks, "os", SimpleNamespace(fsync=refuse))


def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=100_000)
    monkeypatch.setattr(checks, "shutil", SimpleNamespace(disk_usage=lambda folder: usage))
