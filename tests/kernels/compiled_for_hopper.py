"""Compile every Triton kernel for an H100 or H200: `python FILE`. Needs no GPU.

This finds kernels that run in the interpreter but that the compiler rejects. The argument types are
those of a launch with bf16 tensors of a real model. Prints one line per kernel: its name, and
`wide` if its global loads are 16 bytes wide.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tunesmith_kernels import (
    adamw_triton,
    gated_activation_triton,
    head_rows_triton,
    nf4_triton,
    rms_norm_triton,
    rope_triton,
)

HOPPER = GPUTarget("cuda", 90, 32)
FP32 = {"rstd", "partial", "cos", "sin", "target_out", "max_out", "sum_out", "mean_out"}
FP32 |= {"m_state", "v_state", "m_scale", "v_scale"}
FP32 |= {"code", "scales_code", "scales_absmax", "offset", "found_inf"}
WORDS = {
    "upper": "*i16",
    "error": "*i16",
    "m_code": "*i8",
    "v_code": "*u8",
    "seed": "i64",
    "packed": "*u8",
    "absmax": "*u8",
}
INT64 = {"positions", "targets"}
FLOATS = {"eps", "gain", "scale", "softcap", "temperature"}
FLOATS |= {"decay", "step_size", "one_minus_beta1", "beta2", "v_correction"}
NORM_POINTERS = {"x", "weight", "y", "dy", "dx"}
HEAD_POINTERS = {"logits", "spread"}
BF16 = (
    NORM_POINTERS
    | HEAD_POINTERS
    | {"q", "k", "q_out", "k_out"}
    | {"gate_up", "d_gate_up", "out", "d_out", "grad"}
)
COUNTS = {"num_rows", "heads", "num_heads", "num_q_heads", "blocks_per_program", "targets_stride"}
COUNTS |= {"num_blocks", "seed"}

NORM = {"ROWS": 1, "COLUMNS": 4096, "heads": 1}
WARPS = {"_row_kernel": 16}
"""Warps of a launch, where a launch has more than 4 and few would make the compiler slow."""
WIDE_LOADS = ("ld.global.v4.b32", "cp.async.cg.shared.global")
"""Loads of 16 bytes: into registers, and ahead of their use into shared memory."""
KERNELS: list[tuple[Any, Mapping[str, object]]] = [  # Any: triton has no types
    *(
        (rms_norm_triton._forward_kernel, {"KIND": kind, "RSTD_GIVEN": given, **NORM})
        for kind in ("llama", "gemma", "olmo")
        for given in (False, True)
    ),
    *(
        (
            rms_norm_triton._backward_kernel,
            {"GEMMA": flag, "WEIGHT_GRAD": flag, **NORM},
        )
        for flag in (False, True)
    ),
    *(
        (
            rope_triton._rope_kernel,
            {"POSITIONS": rest > 0, "REST": rest, "HEADS": 32, "HALF": 64},
        )
        for rest in (0, 32)
    ),
    *(
        (kernel, {"ACTIVATION": activation, "BLOCK": 1024, **out})
        for activation in ("silu", "gelu", "gelu_tanh")
        for kernel, out in (
            (gated_activation_triton._forward_kernel, {}),
            (gated_activation_triton._backward_kernel, {"OUT": True}),
        )
    ),
    *(
        (
            head_rows_triton._row_kernel,
            {
                "HAS_SOFTCAP": flag,
                "HAS_ENTROPY": flag,
                "HAS_TOP1": flag,
                "HAS_GRADIENT": True,
                "HAS_SPREAD": flag,
                "BLOCK": 16384,
            },
        )
        for flag in (False, True)
    ),
    (adamw_triton._error_word_kernel, {"ELEMENTS": adamw_triton.ELEMENTS}),
    (adamw_triton._8bit_kernel, {"BLOCKS": 4}),
    *(
        (
            nf4_triton._dequantize_kernel,
            {"BLOCK": 64, "SCALES_BLOCK": 256, "NESTED": nested, "BYTES": nf4_triton.BYTES},
        )
        for nested in (False, True)
    ),
]


def compiled(kernel: Any, constants: Mapping[str, object]) -> str:
    """Compile a kernel to PTX. Sizes and strides that are divisible by 16 are marked, as in a
    launch."""
    names = kernel.arg_names
    types = {
        name: "constexpr"
        if name in constants
        else "*fp32"
        if name in FP32
        else "*i64"
        if name in INT64
        else "*u8"
        if name == "top1_out"
        else "*bf16"
        if name in BF16
        else "fp32"
        if name in FLOATS
        else WORDS.get(name, "i32")
        for name in names
    }
    source = ASTSource(
        kernel,
        signature=types,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if name not in constants and name not in COUNTS and name not in FLOATS
        },
    )
    options = {"num_warps": WARPS.get(kernel.__name__, 4)}
    ptx: str = triton.compile(source, target=HOPPER, options=options).asm["ptx"]
    return ptx


if __name__ == "__main__":
    for kernel, constants in KERNELS:
        ptx = compiled(kernel, constants)
        wide = any(load in ptx for load in WIDE_LOADS)
        sys.stdout.write(f"{kernel.__name__} {'wide' if wide else 'narrow'}\n")
