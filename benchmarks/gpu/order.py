"""Order of all cases. The most important cases come first, because a run may end early.

First each part runs once, on the models whose results have a required value. Then follow the tests
that need a GPU, the profiles, further rounds and the other models. The last case trains with each
precision to compare the losses, and takes minutes. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec

from .children import Job
from .grpo_plan import REAL as GRPO_MODEL
from .grpo_plan import TINY as TINY_GRPO_MODEL
from .grpo_plan import decoding_cases, step_cases
from .speed_plan import BARRED, OTHERS, PROFILED, TINY, profile_case, speed_cases

PARTS = ("correctness", "parity", "speed", "kernels", "grpo", "memory", "precision")
OPTIONAL = {"liger": "liger_kernel", "unsloth": "unsloth"}
"""Compared trainers that need a GPU, with the package that each trainer needs."""
REAL_SHAPES, TINY_SHAPES = ("llama-8b", "qwen-1.5b"), ("tiny",)
"""Names of the shapes in the parts `correctness` and `kernels` (keys of
kernel_operations.SHAPES)."""
PRECISION_MODELS = {False: ("llama-3.2-1b", "qwen2.5-0.5b"), True: ("tiny-llama", "tiny-llama")}
"""Models of the benchmark part `precision`: one model for bytes and time, one for the loss.

The key is True with --tiny.
"""
_USUAL, _LONG = 90.0, 150.0
_LOSS = 600.0
"""Time limits of cases in seconds: most cases, long cases, and the comparison of losses."""


def all_jobs(parts: Sequence[str], *, tiny: bool, rounds: int) -> list[Job]:
    """List the jobs of `parts` in the order in which they run."""
    jobs = [job for job in _ordered(tiny, rounds) if job.part in parts]
    # With --tiny, only a case that hangs may reach its time limit, even on a busy machine.
    return [replace(job, seconds=10 * job.seconds) for job in jobs] if tiny else jobs


def _ordered(tiny: bool, rounds: int) -> Iterator[Job]:
    barred, others = (TINY, ()) if tiny else (BARRED, OTHERS)
    yield _job("correctness", *_checks(tiny))
    yield _job("parity")
    yield from _speed(barred, tiny, 1)
    yield _job("kernels")
    yield from _grpo(tiny, 1)
    yield _job("memory", seconds=_LONG)
    large, small = PRECISION_MODELS[tiny]
    yield _job("precision", f"{large}/bytes", f"{large}/time")
    yield _job("correctness", "gpu_tests", seconds=_LONG)
    for model in TINY if tiny else PROFILED:
        yield _job("speed", profile_case(model))
    for turn in range(2, rounds + 1):
        yield from _speed(barred, tiny, turn)
        yield from _grpo(tiny, turn)
    for turn in range(1, rounds + 1):
        yield from _speed(others, tiny, turn)
    yield _job("precision", f"{small}/loss", seconds=_LOSS)


def _job(part: str, *cases: str, seconds: float = _USUAL) -> Job:
    return Job(part=part, module=f"benchmarks.gpu.{part}", cases=cases, seconds=seconds)


def _checks(tiny: bool) -> list[str]:
    return [
        f"{shape}/{name}" for shape in (TINY_SHAPES if tiny else REAL_SHAPES) for name in CHECKED
    ]


CHECKED = (
    *("attention", "log_prob", "head_rows", "lora_qkv", "lora_down", "rms_norm", "swiglu", "rope"),
    *("qk_norm", "geglu", "rms_norm_gemma"),
)
"""Checked operations. The operations that every model needs come first."""


def _speed(models: Sequence[str], tiny: bool, turn: int) -> Iterator[Job]:
    """Yield a job for each model and trainer. Every second round reverses the order of the
    trainers."""
    sides = ["ours", "stock"]
    if not tiny:
        sides += [side for side, package in OPTIONAL.items() if find_spec(package) is not None]
    for model in models:
        for side in sides if turn % 2 else reversed(sides):
            yield _job("speed", *speed_cases(model, side, turn))


def _grpo(tiny: bool, turn: int) -> Iterator[Job]:
    """Yield the jobs of GRPO steps.

    Only the first round has jobs with full tuning and jobs that measure only decoding.
    """
    model = TINY_GRPO_MODEL if tiny else GRPO_MODEL
    for case in step_cases(model, turn):
        yield _job("grpo", case, seconds=_LONG)
    if turn == 1:
        yield _job("grpo", *decoding_cases(model), seconds=_LONG)
        yield _job("grpo", f"{model}/ours/full/1", seconds=_LONG)


def absent(parts: Sequence[str], *, tiny: bool) -> list[tuple[str, str, str]]:
    """List the part, case and reason of each trainer that is not compared."""
    if "speed" not in parts:
        return []
    model = "tiny" if tiny else "all models"
    return [
        ("speed", f"{model}/{side}", "needs a GPU" if tiny else f"{package} is not installed")
        for side, package in OPTIONAL.items()
        if tiny or find_spec(package) is None
    ]
