"""Write the sections on training on a CPU (against stock TRL) and on the service."""

from __future__ import annotations

from .tables import Result, against_bar, date, table, versions

AGAINST = {
    "stock-packing": "stock TRL, packed",
    "stock-default": "stock TRL, padded (its default), no recomputation",
    "liger": "TRL with Liger's layers",
}
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
FIRST_STEPS = {
    "warm": "a warm trainer is ready",
    "at_once": "the previous job has just ended",
    "cold": "first job after the workers started",
    "without": "the worker has no warm trainer",
}
SERVED = ("create", "upload", "sse", "lists")
TUNINGS = {"lora": "LoRA", "full": "all weights"}


def newest(results: list[Result]) -> list[Result]:
    """Return the newest run of benchmarks.sft for each combination of tuning, dtype and compared
    trainer. Results files list the newest run first."""
    newest_runs: dict[tuple[str, ...], Result] = {}
    for row in results:
        if row["benchmark"] == "sft":
            newest_runs.setdefault((row["tuning"], row["dtype"], row["against"]), row)
    return list(newest_runs.values())


def name_of(result: Result) -> str:
    return f"{AGAINST[result['against']]}; {TUNINGS[result['tuning']]}, {DTYPES[result['dtype']]}"


def training(results: list[Result]) -> str:
    rows = newest(results)
    parts = [
        "## Training on a CPU\n",
        "Training steps of a Llama of 12.4 million parameters on rows of 32 to 768 tokens, with "
        "LoRA r 32 on all linear layers or full tuning (`python -m benchmarks.sft`; `sft.json`). "
        "Speed is tokens per CPU-second of one thread. Peak memory is the peak during "
        "training minus the memory in use before training. Loss is the largest relative "
        "difference between our loss and stock TRL's loss in a step. If stock TRL uses padded "
        "batches, its batches contain other rows than ours, so the losses are not comparable.\n",
        "![Speed by comparison](images/training-on-a-cpu.svg)\n",
        table(
            ("ours against", "speed", "peak memory", "tokens/CPU-s", "loss", "rounds", "set-up"),
            (
                (
                    name_of(row),
                    against_bar(row["speed_ratio"], row["speed_bar"], at_least=True),
                    against_bar(row["memory_ratio"], row["memory_bar"], at_least=False),
                    " / ".join(f"{_rate(row[side]):,.0f}" for side in ("ours", "theirs")),
                    "-" if row["loss_difference"] is None else f"{row['loss_difference']:.1e}",
                    len(row["speed_ratios"]),
                    f"{row['cpu']}; {versions(row)}; {date(row)}",
                )
                for row in rows
            ),
        ),
    ]
    return "\n".join(parts)


def _rate(runs: list[Result]) -> float:
    rates = sorted(float(run["tokens_per_cpu_second"]) for run in runs)
    return rates[len(rates) // 2]


def service(results: list[Result]) -> str:
    """Write the section on the service.

    The time to the first step is from the newest run that measured this time. All other results are
    from the newest run that measured all of them.
    """
    row = next(row for row in results if all(part in row for part in SERVED))
    create, upload, sse = row["create"], row["upload"], row["sse"]
    alone, beside = (create[key]["create"] for key in ("alone", "beside_lists"))
    pages = [
        kind["over_first_by_fifth"] for kind in row["lists"].values() if isinstance(kind, dict)
    ]
    growth = " / ".join(
        f"{upload[way]['api_rss_growth_mb']:g}"
        for way in ("post_multipart", "send_by_sdk", "download")
    )
    rows = [
        (
            "latency of creating a job at 100 requests/s: p50 / p99",
            f"{alone['p50_ms']:g} / {alone['p99_ms']:g} ms",
        ),
        ("latency of creating a job with 20 list requests/s: p99", f"{beside['p99_ms']:g} ms"),
        (
            "memory growth of the API for 1 GiB: upload at once / upload in parts / download",
            f"{growth} MB",
        ),
        (
            f"{sse['watchers']} watchers: events delivered, lost, out of order",
            f"{sse['delivered']:,}, {sse['lost']}, {sse['repeated_or_out_of_order']}",
        ),
        (
            "delay of an event until delivery: p50 / p99",
            f"{sse['delivery_p50_ms']:.0f} / {sse['delivery_p99_ms']:.0f} ms",
        ),
        (
            "list of 10,000 items: latency of the slowest fifth of the pages / latency of the "
            "first page",
            f"{max(map(max, pages)):.2f}x",
        ),
    ]
    return "\n".join(
        [
            "## The service\n",
            "Measurements of a running service that stores its data in SQLite "
            "(`python -m benchmarks.service`; `service.json` has all runs). "
            f"{row['cores']} cores of {row['cpu']}, Python {row['python']}, {versions(row)}; "
            f"{date(row)}, commit {row['commit']}.\n",
            table(("figure", "measured"), rows),
            _first_step(max((row for row in results if "first_step" in row), key=_when)),
        ]
    )


def _first_step(row: Result) -> str:
    """Write the table of times to the first step.

    An old result has only the times of a worker without a warm trainer (an idle trainer process
    that has imported its libraries).
    """
    result = row["first_step"]
    kinds = {"without": result} if "first_step_seconds" in result else result
    rows = (
        (words, f"{kinds[kind]['first_step_seconds']:.1f} s", f"{_fastest(kinds[kind]):.1f} s")
        for kind, words in FIRST_STEPS.items()
        if kind in kinds
    )
    return (
        f"Time from the request to the first training step ({date(row)}, commit {row['commit']}, "
        f"{result['idle_share_of_all_cores']:.0%} of the cores idle):\n\n"
    ) + table(("when", "median", "fastest"), rows)


def _fastest(first: Result) -> float:
    return float(first["fastest_seconds"] if "fastest_seconds" in first else min(first["each"]))


def _when(row: Result) -> str:
    return str(row["at"])
