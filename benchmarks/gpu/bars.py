"""Bars (required values) of the GPU benchmarks. Each bar has a name, a bound and a measured value.

This module imports no code that measures; it reads only the results.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..worst import as_error, as_share
from .grpo_plan import BATCHES

Results = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, kw_only=True)
class Bar:
    name: str
    least: float | None = None
    most: float | None = None
    figure: Callable[[Results], float | None]
    """Function that computes the value from the results; returns None if the value was not
    measured."""

    def judged(self, results: Results) -> dict[str, Any]:  # Any: JSON
        figure = self.figure(results)
        met = None
        if figure is not None:
            met = (self.least is None or figure >= self.least) and (
                self.most is None or figure <= self.most
            )
        bound = {"at_least": self.least} if self.most is None else {"at_most": self.most}
        shown = None if figure is None else float(f"{figure:.4g}")
        return {"bar": self.name, **bound, "figure": shown, "met": met}


def speed(results: Results, model: str, side: str, setting: str, key: str) -> float | None:
    """Return the median of the value `key` over all rounds, for one model, trainer and setting."""
    rounds = [
        result[key]
        for case, result in results.get("speed", {}).items()
        if case.split("/")[:3] == [model, side, setting] and result.get(key) is not None
    ]
    return statistics.median(rounds) if rounds else None


def _rate(model: str) -> Callable[[Results], float | None]:
    return lambda results: speed(results, model, "ours", "no-recompute", "tokens_per_second")


def _against(model: str, side: str, setting: str, key: str) -> Callable[[Results], float | None]:
    def ratio(results: Results) -> float | None:
        ours, theirs = (
            speed(results, model, compared, setting, key) for compared in ("ours", side)
        )
        return None if ours is None or theirs is None else ours / theirs

    return ratio


def _worst_kernel(bound: str) -> Callable[[Results], float | None]:
    def worst(results: Results) -> float | None:
        ratios = [
            as_share(result["ratio"])
            for result in results.get("kernels", {}).values()
            if result.get("bound") == bound and result.get("barred")
        ]
        return min(ratios, default=None)

    return worst


def _share_of_blas(model: str) -> Callable[[Results], float | None]:
    def share(results: Results) -> float | None:
        used, ceiling = (
            speed(results, model, "ours", "no-recompute", f"{rate}_tflop_per_s")
            for rate in ("model", "blas")
        )
        return None if used is None or not ceiling else used / ceiling

    return share


def _parity(dtype: str, key: str) -> Callable[[Results], float | None]:
    def worst(results: Results) -> float | None:
        parity = results.get("parity", {}).items()
        errors = [as_error(result[key]) for case, result in parity if case.endswith(f"/{dtype}")]
        return max(errors, default=None)

    return worst


def _memory(key: str, judged: Callable[[list[float]], float]) -> Callable[[Results], float | None]:
    def error(results: Results) -> float | None:
        cases = results.get("memory", {}).values()
        errors = [
            as_error(abs(result[f"{key}predicted_bytes"] / result[held] - 1))
            for result in cases
            if (held := f"{key or 'held_'}bytes") in result
            and "moment" in result
            and result[held]
            and result[f"{key}predicted_bytes"]
        ]
        return judged(errors) if errors else None

    return error


def _offload(results: Results) -> float | None:
    """Return the largest time overhead of offloading among cases for which the memory plan expects
    no overhead. Ignore cases with a hidden size below 2,048 or with fewer than 4,096 tokens."""
    cases = results.get("memory", {}).values()
    overheads = [
        as_error(result["overhead"])
        for result in cases
        if result.get("planner_calls_it_free")
        and result["hidden"] >= 2048
        and result["tokens"] >= 4096
    ]
    return max(overheads, default=None)


def _precision(case: str, *keys: str) -> Callable[[Results], float | None]:
    def figure(results: Results) -> float | None:
        for name, result in results.get("precision", {}).items():
            if name.endswith(f"/{case}"):
                for key in keys:
                    result = result[key]
                return as_error(abs(result))
        return None

    return figure


def _grpo(key: str, *case: str) -> Callable[[Results], float | None]:
    def figure(results: Results) -> float | None:
        figures = [
            float(result[key])
            for name, result in results.get("grpo", {}).items()
            if tuple(name.split("/")[: len(case)]) == case
        ]
        return statistics.median(figures) if figures else None

    return figure


def _grpo_times(
    above: tuple[str, ...], below: tuple[str, ...]
) -> Callable[[Results], float | None]:
    def ratio(results: Results) -> float | None:
        numerator, denominator = (
            _grpo("seconds_per_step", *case)(results) for case in (above, below)
        )
        return None if numerator is None or denominator is None else numerator / denominator

    return ratio


LARGE, SMALL = "llama-3.1-8b", "qwen2.5-1.5b"


def _bars() -> Iterator[Bar]:
    yield Bar(
        name="kernels limited by bandwidth: lowest rate relative to the copy bandwidth",
        least=0.80,
        figure=_worst_kernel("bandwidth"),
    )
    yield Bar(
        name="kernels limited by matrix products: lowest rate relative to BLAS",
        least=0.85,
        figure=_worst_kernel("products"),
    )
    yield Bar(
        name="parity fp32: worst error of a gradient", most=1e-5, figure=_parity("fp32", "worst")
    )
    yield Bar(
        name="parity bf16: worst error relative to the stock model",
        most=1.5,
        figure=_parity("bf16", "worst"),
    )
    for model, floor, share in ((LARGE, 13_500.0, 0.75), (SMALL, 46_000.0, 0.65)):
        yield Bar(name=f"{model}: tokens/s", least=floor, figure=_rate(model))
        yield Bar(
            name=f"{model}: share of the sustained BLAS rate of the model's matrix products",
            least=share,
            figure=_share_of_blas(model),
        )
    for model in (LARGE, SMALL):
        for side, setting, least in (
            ("stock", "no-recompute", 1.5),
            ("liger", "no-recompute", 1.2),
            ("stock", "defaults", 2.0),
        ):
            name = f"{model}, {setting}: speed relative to {side}"
            figure = _against(model, side, setting, "tokens_per_second")
            yield Bar(name=name, least=least, figure=figure)
        for side in ("stock", "liger"):
            name = f"{model}, no-recompute: peak memory relative to {side}"
            figure = _against(model, side, "no-recompute", "peak_gib")
            yield Bar(name=name, most=1.0, figure=figure)
    yield from _memory_bars()
    yield from _grpo_bars()


def _memory_bars() -> Iterator[Bar]:
    yield Bar(name="memory: worst error of a predicted peak", most=0.10, figure=_memory("", max))
    yield Bar(
        name="memory: median error of a predicted peak",
        most=0.05,
        figure=_memory("", statistics.median),
    )
    yield Bar(
        name="memory: worst error of predicted pinned memory",
        most=0.10,
        figure=_memory("pinned_", max),
    )
    yield Bar(name="memory: time overhead of offloading", most=0.02, figure=_offload)
    for name, key, bound in (
        ("bf16_split_master", "bf16_error_word", 12.0),
        ("bf16_sr8", "bf16_sr8", 6.0),
    ):
        yield Bar(
            name=f"precision: bytes per parameter in {name}",
            most=bound,
            figure=_precision("bytes", key),
        )
    yield Bar(
        name="precision: step time with split masters relative to plain bf16",
        most=1.05,
        figure=_precision("time", "ratio"),
    )
    yield Bar(
        name="precision: loss difference of split masters relative to fp32",
        most=0.005,
        figure=_precision("loss", "relative", "bf16_error_word"),
    )


def _grpo_bars() -> Iterator[Bar]:
    ours = (SMALL, "ours", "lora")
    yield Bar(
        name=f"{SMALL}, GRPO: speed of a step relative to stock TRL",
        least=2.0,
        figure=_grpo_times((SMALL, "stock", "lora"), ours),
    )
    yield Bar(
        name=f"{SMALL}, GRPO: speed of LoRA relative to full tuning",
        least=1.0,
        figure=_grpo_times((SMALL, "ours", "full"), ours),
    )
    yield Bar(
        name=f"{SMALL}, GRPO: share of a step's time spent on the weight sync",
        most=0.02,
        figure=_grpo("sync_share", *ours),
    )
    for batch in BATCHES:
        yield Bar(
            name=f"{SMALL}: speed of decoding {batch} completions with an adapter, "
            "relative to the bare model",
            least=0.95,
            figure=_grpo("adapter_on_base", SMALL, "decode", str(batch)),
        )


BARS = tuple(_bars())


def judge(results: Results) -> list[dict[str, Any]]:  # Any: JSON
    return [bar.judged(results) for bar in BARS]
