"""Child process of the GPU benchmarks: runs named cases and answers each with one JSON line.

A child finishes its imports and then waits for a line on stdin, so that its imports overlap with
the previous measurement. Answers go to the original stdout; output of libraries goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

Case = Callable[[], dict[str, Any]]  # Any: JSON

DEVICE_LOST = 3
"""Exit status after an error that makes the CUDA context unusable."""
PACKAGES = (
    *("torch", "triton", "transformers", "trl", "peft", "accelerate", "liger_kernel"),
    *("flash_attn", "flash_attn_3", "unsloth"),
)


def serve(cases: Mapping[str, Case]) -> int:
    """Report the names of the cases, then run them in order. Return the exit status. `--cases`
    selects cases; the default is all cases."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cases", nargs="+", default=list(cases))
    names: list[str] = arguments.parse_known_args()[0].cases
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(line: dict[str, Any]) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    if not sys.stdin.readline():
        return 1  # the parent has ended
    answer({"facts": facts(), "cases": names})
    for name in names:
        try:
            result = cases[name]()
        except Exception as error:  # every failure of a case is recorded
            traceback.print_exc()
            answer({"case": name, "error": describe(error)})
            if not usable():
                return DEVICE_LOST
        else:
            answer({"case": name, "result": result})
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


def usable() -> bool:
    """Return False after an error that makes the CUDA context unusable, such as an illegal
    address."""
    if not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def describe(error: BaseException) -> str:
    """Describe an exception and its last frames. The text contains file names, but no paths of this
    machine."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:600]} ({where})"


def facts() -> dict[str, Any]:
    """Return the properties of the device and the versions of the packages."""
    about: dict[str, Any] = {"python": sys.version.split()[0], "versions": {}}
    for name in PACKAGES:
        try:
            about["versions"][name] = version(name)
        except PackageNotFoundError:
            continue
    if not torch.cuda.is_available():
        return about | {"device": "cpu"}
    device = torch.cuda.get_device_properties(0)
    return about | {
        "device": device.name,
        "compute_capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "memory_gib": round(device.total_memory / 2**30, 1),
        "l2_mib": round(device.L2_cache_size / 2**20, 1),
        "cuda": torch.version.cuda,
    }
