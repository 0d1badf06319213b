"""Operations around the large matrix products of a layer, for kernel_operations.py.

The operations are the norm of q and k, attention over segments, projections with adapters, and
log-probs from a head. Frozen weights are not leaf tensors, because no implementation computes their
gradients.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tunesmith_kernels.attention import segment_attention
from tunesmith_kernels.log_prob import token_log_probs
from tunesmith_kernels.lora import Adapter, Norm, Projection, lora_linear
from tunesmith_kernels.qk_norm import qk_norm
from tunesmith_kernels.rms_norm import NormKind
from tunesmith_kernels.segments import AttentionShape, Segments

from .kernel_problem import Problem, Shape, Tensors, leaf, liger_function

EPS = 1e-6
LORA_SCALE = 0.5


def qk_norm_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """RMSNorm of each head of q and k (Qwen 3), with trained weights. The eager implementation is
    transformers' norm module. Our kernel works in place, so its time includes a copy of its
    input."""
    attention = _attention_shape(shape)
    qkv = leaf(shape.rows, attention.width, device=device, dtype=dtype)
    weights = [leaf(shape.head_size, device=device, dtype=dtype) for _ in range(2)]
    columns = [n * shape.head_size for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
    liger = liger_function("LigerRMSNormFunction")

    def ours(qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor) -> Tensors:
        normed = qk_norm(qkv.clone(), q_weight, k_weight, EPS, NormKind.LLAMA, attention)
        return tuple(normed.split(columns, dim=1))

    def eager(qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor) -> Tensors:
        q, k, v = qkv.split(columns, dim=1)
        return _norm_of_heads(q, q_weight), _norm_of_heads(k, k_weight), v

    def of_liger(qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor) -> Tensors:
        q, k, v = qkv.split(columns, dim=1)
        heads = (x.unflatten(1, (-1, shape.head_size)) for x in (q, k))
        normed = (
            liger(x, weight, EPS, 0.0, "llama", False).flatten(1)
            for x, weight in zip(heads, (q_weight, k_weight), strict=True)
        )
        return (*normed, v)

    return Problem(
        leaves=(qkv, *weights),
        ours=ours,
        eager=eager,
        liger=liger and of_liger,
        least_bytes=5 * (columns[0] + columns[1]) * shape.rows * qkv.element_size(),
    )


def attention_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """Attention over packed texts, without RoPE. The eager implementation runs SDPA (torch's
    scaled_dot_product_attention) on each text. `sdpa_block_mask` is one SDPA call with a dense [T,
    T] mask. Each key head is repeated for the query heads of its group; transformers also repeats
    keys if it uses a mask. The time excludes building the mask, although stock transformers builds
    a mask for each batch."""
    attention = _attention_shape(shape)
    qkv = leaf(shape.rows, attention.width, device=device, dtype=dtype)
    segments = Segments.from_lengths(shape.lengths(), device)
    number = torch.repeat_interleave(
        torch.arange(len(shape.lengths())), torch.tensor(shape.lengths())
    ).to(device)
    mask = (number[:, None] == number[None, :]).tril()

    def split(qkv: torch.Tensor) -> Tensors:
        heads = qkv.unflatten(1, (-1, shape.head_size)).transpose(0, 1)
        parts: Tensors = heads.split([shape.heads, shape.kv_heads, shape.kv_heads])
        return parts

    def eager(qkv: torch.Tensor) -> Tensors:
        outputs = []
        for start, stop in segments.rows():
            q, k, v = (x[None, :, start:stop] for x in split(qkv))
            outputs.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        return (torch.cat(outputs, dim=2)[0].transpose(0, 1).flatten(1),)

    def with_block_mask(qkv: torch.Tensor) -> Tensors:
        q, k, v = split(qkv)
        k, v = (x.repeat_interleave(shape.heads // shape.kv_heads, dim=0) for x in (k, v))
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)
        return (out[0].transpose(0, 1).flatten(1),)

    out_bytes = shape.rows * shape.heads * shape.head_size * qkv.element_size()
    return Problem(
        leaves=(qkv,),
        ours=lambda qkv: (segment_attention(qkv, None, None, segments, attention),),
        eager=eager,
        others={"sdpa_block_mask": with_block_mask},
        least_bytes=3 * qkv.nbytes + 2 * out_bytes,
        no_liger="Liger has no attention over segments",
    )


def lora_qkv_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """RMSNorm, then the q, k and v projections with adapters. The eager implementation is
    transformers' norm module and three PEFT layers. The leaf tensors are x and the LoRA matrices A
    and B of each projection."""
    outs = [n * shape.head_size for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
    x = leaf(shape.rows, shape.hidden, device=device, dtype=dtype)
    norm_weight = torch.ones(shape.hidden, device=device, dtype=dtype)
    fused = _weight(sum(outs), shape.hidden, device, dtype)
    weights = fused.split(outs)
    adapters = _adapters(shape.hidden, outs, shape.rank, device)

    def ours(x: torch.Tensor, *adapters: torch.Tensor) -> Tensors:
        norm = Norm(norm_weight, EPS, NormKind.LLAMA)
        y = lora_linear(x, _projections(weights, adapters), fused_weight=fused, norm=norm)
        return tuple(y.split(outs, dim=1))

    def eager(x: torch.Tensor, *adapters: torch.Tensor) -> Tensors:
        h = _rms_norm(x, norm_weight)
        pairs = zip(adapters[::2], adapters[1::2], strict=True)
        return tuple(
            _peft_linear(h, weight, a, b) for weight, (a, b) in zip(weights, pairs, strict=True)
        )

    y_bytes = shape.rows * sum(outs) * x.element_size()
    return Problem(
        leaves=(x, *adapters),
        ours=ours,
        eager=eager,
        least_bytes=3 * x.nbytes + 2 * y_bytes + 2 * fused.nbytes + _three_times(adapters),
        no_liger="Liger has no LoRA",
    )


def lora_down_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """SwiGLU, then the down projection with its adapter, then the addition of the residual. The
    eager implementation is transformers' MLP with a PEFT layer. The leaf tensors are one tensor
    with gate and up, the residual, and the LoRA matrices A and B."""
    gate_up = leaf(shape.rows, 2 * shape.intermediate, device=device, dtype=dtype)
    residual = leaf(shape.rows, shape.hidden, device=device, dtype=dtype)
    weight = _weight(shape.hidden, shape.intermediate, device, dtype)
    a, b = _adapters(shape.intermediate, [shape.hidden], shape.rank, device)

    def ours(
        gate_up: torch.Tensor, residual: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> Tensors:
        parts = _projections((weight,), (a, b))
        return (lora_linear(gate_up, parts, activation="silu", residual=residual),)

    def eager(
        gate_up: torch.Tensor, residual: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> Tensors:
        gate, up = gate_up.chunk(2, -1)
        return (residual + _peft_linear(F.silu(gate) * up, weight, a, b),)

    return Problem(
        leaves=(gate_up, residual, a, b),
        ours=ours,
        eager=eager,
        least_bytes=3 * gate_up.nbytes
        + 4 * residual.nbytes
        + 2 * weight.nbytes
        + _three_times((a, b)),
        no_liger="Liger has no LoRA",
    )


def log_prob_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """Log-prob of each row's token from a frozen head. The eager implementation computes all
    logits in fp32. Each log-prob has another upstream gradient, as in a preference loss."""
    hidden = leaf(shape.rows, shape.hidden, device=device, dtype=dtype)
    weight = _weight(shape.vocabulary, shape.hidden, device, dtype)
    targets = torch.randint(shape.vocabulary, (shape.rows,), device=device)
    liger = liger_function("LigerFusedLinearCrossEntropyFunction")

    def eager(hidden: torch.Tensor) -> Tensors:
        logits = F.linear(hidden, weight.to(hidden.dtype))
        log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        return (log_p.gather(1, targets[:, None])[:, 0],)

    def of_liger(hidden: torch.Tensor) -> Tensors:
        loss = liger(hidden, weight, targets, None, None, -100, 0.0, 0.0, "none")[0]
        return (-loss,)

    return Problem(
        leaves=(hidden,),
        ours=lambda hidden: (token_log_probs(hidden, weight, None, targets).log_probs,),
        eager=eager,
        liger=liger and of_liger,
        least_bytes=3 * hidden.nbytes + 2 * weight.nbytes,
    )


def _attention_shape(shape: Shape) -> AttentionShape:
    return AttentionShape(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_size,
        scale=shape.head_size**-0.5,
    )


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + EPS)
    scaled: torch.Tensor = weight.to(x.dtype) * normed.to(x.dtype)
    return scaled


def _norm_of_heads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    heads: torch.Tensor = x.unflatten(1, (-1, len(weight)))
    return _rms_norm(heads, weight).flatten(1)


def _weight(out: int, inputs: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    weight: torch.Tensor = torch.randn(out, inputs, device=device) * inputs**-0.5
    return weight.to(dtype)


def _adapters(inputs: int, outs: list[int], rank: int, device: torch.device) -> list[torch.Tensor]:
    """Make LoRA matrices A, B, A, B ... in fp32, the dtype of PEFT's adapters on a half-precision
    base model."""
    tensors = []
    for out in outs:
        sizes = ((rank, inputs), (out, rank))
        tensors += [
            leaf(*size, device=device, dtype=torch.float32, scale=size[1] ** -0.5) for size in sizes
        ]
    return tensors


def _projections(weights: Tensors, adapters: Tensors) -> list[Projection]:
    pairs = zip(adapters[::2], adapters[1::2], strict=True)
    return [
        Projection(weight, adapter=Adapter(a, b, LORA_SCALE))
        for weight, (a, b) in zip(weights, pairs, strict=True)
    ]


def _peft_linear(
    x: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Run PEFT's layer under autocast. Without autocast, PEFT's layer is slower, because it
    converts half-precision inputs to fp32."""
    base = F.linear(x, weight.to(x.dtype))
    return base + F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype)) * LORA_SCALE


def _three_times(tensors: Tensors | list[torch.Tensor]) -> int:
    """Return the bytes of adapters that a step reads and writes.

    The forward and backward pass read A and B, and the backward pass writes their gradients.
    """
    return 3 * sum(tensor.nbytes for tensor in tensors)
