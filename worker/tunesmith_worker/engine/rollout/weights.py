"""Weights of the decoder: a merged copy, or the training weights with the adapter folded in.

The decoder's weights are read at the start of every rollout, so they are always current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tunesmith_kernels.head_chunks import TrainedRows
from tunesmith_kernels.lora import Adapter, Projection
from tunesmith_kernels.nf4 import nf4_dequantize
from tunesmith_kernels.nf4_types import NF4Weight
from tunesmith_kernels.rms_norm import NormKind, rms_norm_forward
from tunesmith_worker.engine.patches.projections import Unsupported, check_linear, read_projection
from tunesmith_worker.engine.patches.token_rows import has_token_rows, look_up, trained_rows

from .architecture import Architecture, LayerSpec, NormSpec
from .fold import FoldFigures, delta_rows, folded
from .linear import Linear, SplitLinear, make_linear
from .protocol import UnsupportedModel

Untyped = Any  # Any: transformers and peft are not typed
Layout = Literal["merged", "in_place"]
"""`merged`: a copy of every weight matrix with the adapter added, packed for decoding. `in_place`:
the training weights, with the adapter folded in during the rollout."""
TensorFunction = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    spec: LayerSpec
    before_attention: TensorFunction | None
    qkv: Linear
    q_norm: TensorFunction | None
    k_norm: TensorFunction | None
    out: Linear
    after_attention: TensorFunction | None
    before_mlp: TensorFunction | None
    gate_up: Linear
    down: Linear
    after_mlp: TensorFunction | None


@dataclass(kw_only=True)
class DecoderWeights:
    embed: TensorFunction
    """Function from token ids [N] to embeddings [N, hidden]."""
    layers: list[LayerWeights]
    norm: TensorFunction
    head: TensorFunction
    """Function from hidden states [N, hidden] to logits [N, V], before logit scale and soft cap."""
    fold: FoldFigures | None


@contextmanager
def decoder_weights(model: Architecture, layout: Layout, rows: int) -> Iterator[DecoderWeights]:
    """Yield the current weights, optimized for steps that decode `rows` completions together.

    On exit, copies are freed and the adapter is unfolded."""
    stack = ExitStack()
    try:
        with torch.no_grad():  # not during the block: the caller may change the grad mode inside it
            fold = None
            if layout == "in_place":
                fold = stack.enter_context(folded(_weights_to_fold(model)))
            make = _merged_linear(model.dtype, rows) if layout == "merged" else _training_linear
            weights = DecoderWeights(
                embed=_embedding(model),
                layers=[_layer(spec, make) for spec in model.layers],
                norm=norm_function(model.norm),
                head=_head(model.head, make),
                fold=fold,
            )
        # Without this, the traceback of an error would keep the copies in memory.
        stack.callback(vars(weights).clear)
        yield weights
    finally:
        with torch.no_grad():
            stack.close()


def check_head(head: Untyped) -> None:
    """Raise UnsupportedModel if the decoder cannot compute the output head."""
    _linear_head(head)


LinearFactory = Callable[[Sequence[Projection]], Linear]


def _layer(spec: LayerSpec, make: LinearFactory) -> LayerWeights:
    return LayerWeights(
        spec=spec,
        before_attention=_norm_or_none(spec.before_attention),
        qkv=make([read_projection(module) for module in spec.qkv]),
        q_norm=_norm_or_none(spec.q_norm),
        k_norm=_norm_or_none(spec.k_norm),
        out=make([read_projection(spec.out)]),
        after_attention=_norm_or_none(spec.after_attention),
        before_mlp=_norm_or_none(spec.before_mlp),
        gate_up=make([read_projection(module) for module in spec.gate_up]),
        down=make([read_projection(spec.down)]),
        after_mlp=_norm_or_none(spec.after_mlp),
    )


def _merged_linear(dtype: torch.dtype, rows: int) -> LinearFactory:
    def make(parts: Sequence[Projection]) -> Linear:
        return make_linear(_merged(parts, dtype), _joined_bias(parts, dtype), rows)

    return make


def _training_linear(parts: Sequence[Projection]) -> Linear:
    linears = []
    for part in parts:
        assert isinstance(part.weight, torch.Tensor), "4-bit weights are refused before folding"
        linears.append(Linear(part.weight, part.bias))
    return linears[0] if len(linears) == 1 else SplitLinear(linears)


def merged_weight(part: Projection, dtype: torch.dtype) -> torch.Tensor:
    """Return `W + s B A` [out, in]; the training weight itself if there is no adapter."""
    return _merged([part], dtype)


def _merged(parts: Sequence[Projection], dtype: torch.dtype) -> torch.Tensor:
    """Merge projections with the same input, such as q, k and v, into one weight [sum of outs, in].

    For each projection, the merged weight is `W + s B A`, summed in fp32 and rounded once."""
    if len(parts) == 1 and parts[0].adapter is None and isinstance(parts[0].weight, torch.Tensor):
        return parts[0].weight.detach()
    outs = [part.weight.shape[0] for part in parts]
    whole = torch.empty(sum(outs), parts[0].weight.shape[1], dtype=dtype, device=_device(parts[0]))
    for part, out in zip(parts, whole.split(outs), strict=True):
        weight = part.weight
        if isinstance(weight, NF4Weight):
            weight = nf4_dequantize(weight, dtype)
        adapter = part.adapter
        if adapter is None:
            out.copy_(weight)
        elif dtype == adapter.a.dtype == adapter.b.dtype == torch.float32:
            torch.addmm(weight, adapter.b, adapter.a, alpha=adapter.scale, out=out)
        else:
            out.copy_(delta_rows(adapter).add_(weight))
    return whole


def _device(part: Projection) -> torch.device:
    weight = part.weight
    return weight.packed.device if isinstance(weight, NF4Weight) else weight.device


def _joined_bias(parts: Sequence[Projection], dtype: torch.dtype) -> torch.Tensor | None:
    if all(part.bias is None for part in parts):
        return None
    biases = [
        torch.zeros(part.weight.shape[0], device=_device(part)) if part.bias is None else part.bias
        for part in parts
    ]
    return torch.cat(biases).to(dtype)


def _weights_to_fold(model: Architecture) -> list[tuple[torch.Tensor, Adapter]]:
    modules = [m for s in model.layers for m in (*s.qkv, s.out, *s.gate_up, s.down)]
    head = _linear_head(model.head)
    if head is not None:
        modules.append(head)
    pairs = []
    for part in map(read_projection, modules):
        if isinstance(part.weight, NF4Weight):
            raise UnsupportedModel("an adapter cannot be merged into 4-bit weights in place")
        if part.adapter is not None:
            pairs.append((part.weight.detach(), part.adapter))
    tied = model.embedding.weight.data_ptr()
    if any(weight.data_ptr() == tied for weight, _ in pairs):
        raise UnsupportedModel(
            "the head shares its weights with the embedding, so an adapter of the head cannot be "
            "merged in place"
        )
    return pairs


def _embedding(model: Architecture) -> TensorFunction:
    module, multiplier = model.embedding, model.embedding_multiplier
    layer = module.token_adapter if has_token_rows(module) else None
    rows = None if layer is None else trained_rows(layer)

    def embed(ids: torch.Tensor) -> torch.Tensor:
        if layer is None or rows is None:
            x: torch.Tensor = module(ids)
        else:
            x = look_up(layer, layer.get_base_layer(), ids, rows)
        return x if multiplier == 1.0 else x * multiplier

    return embed


def _linear_head(head: Untyped) -> Untyped | None:
    """Return the head as a linear module; None if only some rows of the head are trained."""
    if has_token_rows(head):
        return None
    if hasattr(head, "modules_to_save"):
        head = head.modules_to_save[head.active_adapters[0]] if head.active_adapters else head
    try:
        check_linear(head)
    except Unsupported as reason:
        raise UnsupportedModel(f"unsupported head: {reason}") from None
    return head


def _head(head: Untyped, make: LinearFactory) -> TensorFunction:
    linear_head = _linear_head(head)
    if linear_head is not None:
        return make([read_projection(linear_head)])
    base, rows = head.token_adapter.get_base_layer(), trained_rows(head.token_adapter)
    if rows is None:
        return make([Projection(base.weight, getattr(base, "bias", None))])
    return _with_trained_rows(make([Projection(base.weight)]), rows)


def _with_trained_rows(linear: Linear, rows: TrainedRows) -> TensorFunction:
    def head(x: torch.Tensor) -> torch.Tensor:
        logits = linear(x)
        return logits.index_copy_(1, rows.ids, x @ rows.values.to(x.dtype).t())

    return head


def _norm_or_none(spec: NormSpec | None) -> TensorFunction | None:
    return None if spec is None else norm_function(spec)


def norm_function(spec: NormSpec) -> TensorFunction:
    weight: torch.Tensor = spec.module.weight.detach()
    eps, kind = spec.eps, spec.kind
    # On a CPU with few rows, plain torch operations take about half the time of our kernel.
    factor = 1.0 + weight.float() if kind is NormKind.GEMMA else weight
    epsilon = torch.full((), eps, device=weight.device)
    per_element = 1 / len(weight)

    def norm(x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            return rms_norm_forward(x, weight, eps, kind)[0].to(x.dtype)
        x_fp32 = x.float()
        size = torch.linalg.vector_norm(x_fp32, dim=-1, keepdim=True)
        normed = x_fp32 * torch.addcmul(epsilon, size, size, value=per_element).rsqrt_()
        if kind is NormKind.LLAMA:
            return (normed.to(x.dtype) * factor).to(x.dtype)
        return (normed * factor).to(x.dtype)

    return norm
