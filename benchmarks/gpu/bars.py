"""What the figures have to reach: each bar, the figure measured for it, and whether it is met.

Knows the layout of the results and nothing of how they came about.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..worst import as_error, as_share

Results = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, kw_only=True)
class Bar:
    name: str
    least: float | None = None
    most: float | None = None
    figure: Callable[[Results], float | None]
    """None: not measured."""

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
    """The median over the rounds that were run."""
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
        ours, theirs = (speed(results, model, one, setting, key) for one in ("ours", side))
        return None if ours is None or theirs is None else ours / theirs

    return ratio


def _worst_kernel(bound: str) -> Callable[[Results], float | None]:
    def worst(results: Results) -> float | None:
        found = [
            as_share(one["ratio"])
            for one in results.get("kernels", {}).values()
            if one.get("bound") == bound and one.get("barred")
        ]
        return min(found, default=None)

    return worst


def _share_of_blas(model: str) -> Callable[[Results], float | None]:
    def share(results: Results) -> float | None:
        used = speed(results, model, "ours", "no-recompute", "model_tflop_per_s")
        ceiling = results.get("kernels", {}).get("ceilings", {}).get("bf16_tflop_per_s")
        return None if used is None or not ceiling else used / ceiling

    return share


def _parity(dtype: str, key: str) -> Callable[[Results], float | None]:
    def worst(results: Results) -> float | None:
        parity = results.get("parity", {}).items()
        found = [as_error(one[key]) for case, one in parity if case.endswith(f"/{dtype}")]
        return max(found, default=None)

    return worst


LARGE, SMALL = "llama-3.1-8b", "qwen2.5-1.5b"


def _bars() -> Iterator[Bar]:
    yield Bar(
        name="kernels bound by bandwidth: worst share of the copy bandwidth",
        least=0.80,
        figure=_worst_kernel("bandwidth"),
    )
    yield Bar(
        name="kernels bound by products: worst share of the BLAS's rate",
        least=0.85,
        figure=_worst_kernel("products"),
    )
    yield Bar(name="parity fp32: worst gradient", most=1e-5, figure=_parity("fp32", "worst"))
    yield Bar(
        name="parity bf16: worst error, on stock's", most=1.5, figure=_parity("bf16", "worst")
    )
    for model, floor in ((LARGE, 13_500.0), (SMALL, 46_000.0)):
        yield Bar(name=f"{model}: tokens/s", least=floor, figure=_rate(model))
        yield Bar(
            name=f"{model}: share of the BLAS's rate", least=0.75, figure=_share_of_blas(model)
        )
    for model in (LARGE, SMALL):
        for side, setting, least in (
            ("stock", "no-recompute", 1.5),
            ("liger", "no-recompute", 1.2),
            ("stock", "defaults", 2.0),
        ):
            name = f"{model}, {setting}: speed on {side}'s"
            figure = _against(model, side, setting, "tokens_per_second")
            yield Bar(name=name, least=least, figure=figure)
        for side in ("stock", "liger"):
            name = f"{model}, no-recompute: peak memory on {side}'s"
            figure = _against(model, side, "no-recompute", "peak_gib")
            yield Bar(name=name, most=1.0, figure=figure)


BARS = tuple(_bars())


def judge(results: Results) -> list[dict[str, Any]]:  # Any: JSON
    return [bar.judged(results) for bar in BARS]
