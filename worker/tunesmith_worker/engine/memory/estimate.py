"""Predict a training step's peak memory, from one formula for each kind of tensor.

For the hidden size H, the intermediate size I, queries of width q, keys of width kv, `s` bytes per
element of the residual stream and `e` bytes per other element, a layer that our kernels compute
keeps `s H + e (q + 2 kv) + e q + s H + e 2 I + e (sum of ranks) + statistics` bytes per token for
backward. The ranks are those of the layer's adapters; the statistics are a few numbers from norms
and softmax. kernels/tunesmith_kernels/lora.py and attention.py list the tensors of this formula.

A recomputed layer keeps only its input (`s H` bytes per token). An offloaded layer keeps its input
in host memory. Layers with 8-bit weights also keep the inputs of their projections, because
bitsandbytes does not free these inputs when a layer is recomputed.

Memory can peak at four moments: in the head, in the backward pass of a layer, when the embedding's
gradient is computed, and in the optimiser step. The predicted peak is the maximum over the four
moments. This module needs neither torch nor a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .shapes import Engine, MicroBatch, ModelShape, Tuning

_TILE = 1 << 18  # elements per tile: equals tunesmith_kernels.tiles.TILE_ELEMENTS
_HEAD_ROWS = {False: 512, True: 4096}  # rows of logits at a time, as in tunesmith_kernels.log_prob
_HEAD_BYTES = {False: 128 << 20, True: 2 << 30}
_HEAD_BLOCK = 16384  # rows per chunk of the weight gradient in tunesmith_kernels.head_chunks
_STOCK_HEAD = (4096, 32768)  # (tokens, vocabulary) per tile of TRL's fused head
_STOCK_TEMPORARIES = 29  # bytes per logit without Triton: seven fp32 values and a bool
_BATCH_BYTES = 40  # per token: ids, labels, positions and row numbers, int64 or int32

Mode = Literal["keep", "recompute", "offload"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Memory policy: the activation mode of each layer, and the number of parts of a micro-batch.

    The first `offload` layers move their input to the host, the last `keep` layers keep all
    activations, and the layers in between keep only their input.

    Backward runs from the last layer to the first. The last layers' kept activations are freed
    before other layers recompute their activations. Therefore, kept and recomputed activations are
    never in memory at the same time. Backward needs the inputs of the first layers last, so there
    is enough time to copy these inputs back from the host.
    """

    keep: int
    offload: int = 0
    parts: int = 1
    """Number of parts into which the rows of a micro-batch are split."""

    def mode_of(self, layer: int, layers: int) -> Mode:
        if layer >= layers - self.keep:
            return "keep"
        return "offload" if layer < self.offload else "recompute"


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Corrections of the predicted bytes, measured in the trial pass (probe.py)."""

    kept: float = 1.0
    """Ratio of measured to predicted bytes that a layer keeps for backward."""
    workspace: float = 1.0
    """Ratio of measured to predicted bytes of temporary memory (workspaces and logits)."""
    allocator: int = 0
    """Freed bytes that the host's allocator has not returned to the operating system."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted bytes at the peak."""

    moment: str
    """Moment of the peak: `head`, `layer N`, `embedding` or `optimizer`."""
    items: dict[str, int] = field(default_factory=dict)
    """Bytes at the peak by item: weights, adapter, gradients, optimizer, batch, activations,
    layer_inputs, workspace, attention_workspace, logits. After a measurement, also `allocator`:
    freed bytes that the host's allocator has not returned to the operating system."""
    by_layer: tuple[int, ...] = ()
    """Bytes that each layer keeps on the device between forward and backward."""
    pinned_host: int = 0

    @property
    def peak(self) -> int:
        return sum(self.items.values())

    @property
    def tensors(self) -> int:
        """Bytes of live tensors at the peak."""
        return self.peak - self.items.get("allocator", 0)

    @property
    def resident(self) -> int:
        """Bytes that stay allocated between steps."""
        return sum(self.items.get(name, 0) for name in ("weights", "adapter", "optimizer"))


def predict(
    shape: ModelShape,
    tuning: Tuning,
    batch: MicroBatch,
    engine: Engine,
    policy: Policy,
    correction: Correction | None = None,
) -> Prediction:
    """Predict the memory peak of a step whose optimiser state is already allocated."""
    correction = correction or Correction()
    batch = batch.part(policy.parts)
    full_layer = round(layer_kept(shape, tuning, batch, engine) * correction.kept)
    one_input = batch.tokens * shape.hidden * tuning.stream_bytes
    modes = [policy.mode_of(layer, shape.layers) for layer in range(shape.layers)]
    retained = _eight_bit_inputs(shape, tuning) * batch.tokens
    by_mode = {"keep": full_layer, "recompute": one_input + retained, "offload": retained}
    held = [by_mode[mode] for mode in modes]
    if "offload" in modes:
        held[modes.index("offload")] += 2 * one_input  # two staging buffers on the device
    inputs = [0 if mode == "keep" else size for mode, size in zip(modes, held, strict=True)]
    kept = [size if mode == "keep" else 0 for mode, size in zip(modes, held, strict=True)]
    base = {
        "weights": tuning.weights,
        "adapter": tuning.adapter,
        "optimizer": round(tuning.optimizer_bytes * tuning.trained),
        "batch": batch.tokens * (_BATCH_BYTES * engine.passes * policy.parts + 8 * shape.rotary),
    }
    gradients = _Gradients(shape, tuning, accumulated=engine.passes * policy.parts > 1)

    moments: list[tuple[str, dict[str, int]]] = []
    forward, backward = _head(shape, tuning, batch, engine)
    for logits, workspace in (forward, backward):
        items = {"activations": sum(kept), "layer_inputs": sum(inputs), "logits": logits}
        work = {"workspace": workspace, "gradients": gradients.at_head}
        moments.append(("head", base | items | work))
    mlp_work, attention_work = _layer_workspaces(shape, tuning, batch, engine)
    mlp_wide, attention_wide = _widened(shape, tuning, engine)
    mlp_work, attention_work = mlp_work + mlp_wide, attention_work + attention_wide
    mlp_kept = _mlp_kept(shape, tuning, batch, engine) * correction.kept
    for layer in range(shape.layers):
        activations = sum(kept[:layer]) + full_layer
        below = sum(inputs[:layer])
        common = {"layer_inputs": below, "gradients": gradients.above(layer)}
        in_mlp = {"activations": activations, "workspace": mlp_work, **common}
        moments.append((f"layer {layer}", base | in_mlp))
        in_attention = {
            "activations": round(activations - mlp_kept),
            "attention_workspace": attention_work,
        }
        moments.append((f"layer {layer}", base | in_attention | common))
    moments.append(("embedding", base | {"workspace": one_input, "gradients": gradients.all}))
    moments.append(("optimizer", base | {"gradients": gradients.all}))

    corrected = [(name, _corrected(items, correction)) for name, items in moments]
    moment, items = max(corrected, key=lambda moment: sum(moment[1].values()))
    items = items | {"allocator": correction.allocator}
    return Prediction(
        moment=moment,
        items={name: size for name, size in items.items() if size},
        by_layer=tuple(held),
        pinned_host=engine.host_block(one_input) * modes.count("offload"),
    )


def _corrected(items: dict[str, int], correction: Correction) -> dict[str, int]:
    transient = ("workspace", "attention_workspace", "logits")
    return {
        name: round(size * correction.workspace) if name in transient else size
        for name, size in items.items()
    }


def layer_kept(shape: ModelShape, tuning: Tuning, batch: MicroBatch, engine: Engine) -> int:
    """Bytes that a layer in mode `keep` stores for backward, including its input."""
    return round(
        _attention_kept(shape, tuning, batch, engine) + _mlp_kept(shape, tuning, batch, engine)
    )


def _attention_kept(shape: ModelShape, tuning: Tuning, batch: MicroBatch, engine: Engine) -> float:
    e, s, h, q, kv = (*_sizes(tuning), shape.hidden, shape.q, shape.kv)
    inputs = ("q_proj", "k_proj", "v_proj", "qkv_proj")
    rank = tuning.rank_of(*inputs, "o_proj")
    if "attention_block" not in engine.ours:
        return _stock_attention_kept(shape, tuning, batch, engine)
    per_token = s * h + e * (q + 2 * kv) + e * q + e * rank + 4 * shape.rotary
    per_token += 4 * shape.before_norms
    if shape.qk_norm:
        per_token += e * (q + kv) + 4 * (shape.heads + shape.kv_heads)
    if shape.after_norms:
        per_token += e * h + 4
    if engine.on_gpu and e == 2 and not shape.softcap:
        per_token += (
            e * (q + kv) + 4 * shape.heads
        )  # q and k are rotated into copies; torch's attention keeps the log-sum-exp
    if tuning.dropout:
        per_token += h * sum(map(tuning.adapts, inputs)) + q * tuning.adapts("o_proj")
    return per_token * batch.tokens + _cast_weights(shape, tuning, (*inputs, "o_proj"))


def _mlp_kept(shape: ModelShape, tuning: Tuning, batch: MicroBatch, engine: Engine) -> float:
    e, s, h, i = (*_sizes(tuning), shape.hidden, shape.intermediate)
    inputs = ("gate_proj", "up_proj", "gate_up_proj")
    rank = tuning.rank_of(*inputs, "down_proj")
    if "mlp_block" not in engine.ours:
        return _stock_mlp_kept(shape, tuning, batch, engine)
    per_token = s * h + 2 * e * i + e * rank + 4 * shape.before_norms
    if shape.after_norms:
        per_token += e * h + 4
    if tuning.dropout:
        per_token += h * sum(map(tuning.adapts, inputs)) + i * tuning.adapts("down_proj")
    return per_token * batch.tokens + _cast_weights(shape, tuning, (*inputs, "down_proj"))


def _stock_attention_kept(
    shape: ModelShape, tuning: Tuning, batch: MicroBatch, engine: Engine
) -> float:
    """Bytes that the attention of transformers and PEFT keeps for backward.

    The attention keeps the norm's input and output, q and k after rotation, v, the attention output
    and the softmax sums. If rows are padded, the attention also keeps the mask in the compute dtype
    and a copy of k and v for each query head."""
    e, h, q = tuning.compute_bytes, shape.hidden, shape.q
    inputs = ("q_proj", "k_proj", "v_proj", "qkv_proj")
    noise = 1 if engine.on_gpu else 4
    per_token = _stock_norm_kept(shape, tuning) + _stock_input_kept(tuning, h, inputs, noise)
    if "attention" in engine.ours:
        per_token += e * (q + 2 * shape.kv) + e * q
    else:
        per_token += e * (2 * q + 2 * (q if batch.padded else shape.kv)) + 4 * shape.heads
    if not tuning.dropout and (tuning.full or e == 4):
        per_token += 4 * tuning.rank_of("o_proj")  # o_proj reads the attention output
    else:
        per_token += _stock_input_kept(tuning, q, ("o_proj",), noise)
    mask = e * batch.rows * batch.longest**2 if batch.padded else 0
    weights = _cast_weights(shape, tuning, (*inputs, "o_proj")) if tuning.full else 0
    return per_token * batch.tokens + mask + weights


def _stock_mlp_kept(shape: ModelShape, tuning: Tuning, batch: MicroBatch, engine: Engine) -> float:
    e, h, i = tuning.compute_bytes, shape.hidden, shape.intermediate
    noise = 1 if engine.on_gpu else 4
    inputs = ("gate_proj", "up_proj", "gate_up_proj")
    per_token = _stock_norm_kept(shape, tuning) + _stock_input_kept(tuning, h, inputs, noise)
    per_token += 3 * e * i
    per_token += e * i if tuning.full else _stock_input_kept(tuning, i, ("down_proj",), noise)
    weights = _cast_weights(shape, tuning, (*inputs, "down_proj")) if tuning.full else 0
    return per_token * batch.tokens + weights


def _stock_norm_kept(shape: ModelShape, tuning: Tuning) -> int:
    """Bytes per token that a norm keeps for backward.

    The norm keeps its input, its statistics and, if the residual stream is not fp32, an fp32 copy
    of the input. A norm with a trained weight also keeps the normalised input."""
    copies = 4 * shape.hidden if tuning.stream_bytes != 4 else 0
    trained = tuning.stream_bytes * shape.hidden if tuning.full else 0
    return tuning.stream_bytes * shape.hidden + copies + 4 + trained


def _stock_input_kept(tuning: Tuning, width: int, modules: tuple[str, ...], noise: int) -> int:
    """Bytes per token that linear modules with a shared input keep for backward.

    A LoRA adapter also keeps the product of its input and its matrix A. If the input is cast to
    another dtype or has dropout, each module keeps its own copy of the input. `noise`: bytes per
    element of a dropout mask."""
    cast = tuning.compute_bytes != 4
    if tuning.full:
        separate = [name for name in modules if name not in ("qkv_proj", "gate_up_proj")]
        return tuning.compute_bytes * width * (len(separate) if cast else 1)
    adapted = sum(map(tuning.adapts, modules))
    copies = adapted if cast or tuning.dropout else min(adapted, 1)
    masks = noise * adapted if tuning.dropout else 0
    return (4 * copies + masks) * width + 4 * tuning.rank_of(*modules)


def _cast_weights(shape: ModelShape, tuning: Tuning, modules: tuple[str, ...]) -> float:
    """Bytes of the copies of weights or adapters that our kernels keep in the compute dtype."""
    if tuning.compute_bytes == 4 or (tuning.full and tuning.stream_bytes == tuning.compute_bytes):
        return 0
    if tuning.full:
        separate = [name for name in modules if name not in ("qkv_proj", "gate_up_proj")]
        weights = sum(a * b for a, b in map(shape.widths, separate))
        return tuning.compute_bytes * weights
    ranks = [(name, rank) for name, rank in tuning.ranks if name in modules]
    return tuning.compute_bytes * sum(rank * sum(shape.widths(name)) for name, rank in ranks)


def _eight_bit_inputs(shape: ModelShape, tuning: Tuning) -> int:
    """Bytes per token of the inputs that a layer's 8-bit projections keep."""
    if not tuning.eight_bits:
        return 0
    return tuning.compute_bytes * (2 * shape.hidden + shape.q + shape.intermediate)


def _layer_workspaces(
    shape: ModelShape, tuning: Tuning, batch: MicroBatch, engine: Engine
) -> tuple[int, int]:
    """Temporary bytes in a layer's backward pass, as a pair (MLP, attention).

    During the MLP's backward, the layer still keeps all activations. During the attention's
    backward, the MLP's activations are already freed."""
    e, s, h, i = (*_sizes(tuning), shape.hidden, shape.intermediate)
    rank = max((rank for _, rank in tuning.ranks), default=0)
    cast = e * h if e != s else 0
    weight = e * h * i if tuning.full else 0
    masked = e * i if tuning.dropout and tuning.adapts("down_proj") else 0
    ours = "mlp_block" in engine.ours
    wide = 4 * i if not ours and e != 4 and not tuning.full else 0  # fp32 gradients of the adapters
    mlp = batch.tokens * (s * h + cast + (3 if ours else 2) * e * i + wide + masked + e * rank)
    mlp += weight
    q, kv = shape.q, shape.kv
    attention = batch.tokens * (s * h + e * q + e * (q + 2 * kv) + 8 * kv)
    block = 512 if engine.on_gpu else (64 if e == 4 else 128)
    tiles = not engine.on_gpu or e == 4 or shape.softcap
    if tiles:
        attention += 3 * e * shape.heads * min(block, batch.longest) * batch.longest
    scratch = 3 * 4 * min(_TILE, batch.tokens * i) if ours and not engine.on_gpu else 0
    return mlp + scratch, attention + scratch


def _widened(shape: ModelShape, tuning: Tuning, engine: Engine) -> tuple[int, int]:
    """Bytes of dequantised 4-bit weights that exist at the same time, as a pair (MLP, attention).

    Our MLP dequantises gate and up together. Our attention dequantises q, k and v together. Stock
    layers dequantise one weight at a time."""
    if not tuning.packed:
        return 0, 0
    e, h = tuning.compute_bytes, shape.hidden
    ours = {"mlp_block", "attention_block"} & engine.ours
    gate_up = e * h * shape.intermediate * (2 if "mlp_block" in ours else 1)
    qkv = e * h * (shape.q + 2 * shape.kv if "attention_block" in ours else shape.q)
    return gate_up, qkv


def _head(
    shape: ModelShape, tuning: Tuning, batch: MicroBatch, engine: Engine
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes of the head's forward and backward pass, each pass as a pair (logits, workspace).

    The backward pass includes the last norm."""
    e, s, h, v = (*_sizes(tuning), shape.hidden, shape.vocabulary)
    stream = batch.tokens * h * s
    norm = 2 * stream + (batch.tokens * h * 4 if s != 4 else 0) + (stream if tuning.full else 0)
    if "loss" not in engine.ours:
        rows, columns = min(batch.tokens, _STOCK_HEAD[0]), min(v, _STOCK_HEAD[1])
        logits = rows * _STOCK_HEAD[1] * e
        if not engine.on_gpu:
            logits += rows * columns * _STOCK_TEMPORARIES
        table = 4 * v * h if tuning.whole_head else 0
        return (logits + table, norm + 3 * stream), (0, norm + 3 * stream)
    scored = batch.labelled * h * s
    tile = min(_TILE, max(batch.tokens * h, batch.labelled * v))
    scratch = 0 if engine.on_gpu else 4 * 4 * tile
    rows = max(
        1, min(batch.labelled, _HEAD_ROWS[engine.on_gpu], _HEAD_BYTES[engine.on_gpu] // (v * e))
    )
    logits = rows * v * e + 4 * rows * h * e
    cast = v * h * e if tuning.whole_head and (e != s or (e != 4 and not tuning.full)) else 0
    gradient = 4 * v * h if tuning.whole_head else 0
    block = min(v, _HEAD_BLOCK) * h * e if tuning.whole_head and e != 4 else 0
    forward = (logits + cast + gradient + block, norm + 2 * scored + scratch)
    backward = (2 * gradient, norm + 3 * scored + 2 * stream)
    return forward, backward


@dataclass(frozen=True)
class _Gradients:
    """Bytes of the gradients that are allocated at a moment of the backward pass.

    With gradient accumulation, all gradients stay allocated.
    """

    shape: ModelShape
    tuning: Tuning
    accumulated: bool

    @property
    def all(self) -> int:
        return self.tuning.gradient_bytes * self.tuning.trained

    @property
    def at_head(self) -> int:
        return self.all if self.accumulated else 0

    def above(self, layer: int) -> int:
        """Bytes of the gradients of the head and the layers above `layer`."""
        if self.accumulated:
            return self.all
        table = self.shape.embedding_parameters
        head = table if self.tuning.whole_head else 0
        layers = self.tuning.trained - self.tuning.tables * table
        done = (self.shape.layers - 1 - layer) * layers / self.shape.layers
        return round(self.tuning.gradient_bytes * (head + done))


def _sizes(tuning: Tuning) -> tuple[int, int]:
    return tuning.compute_bytes, tuning.stream_bytes
