"""Section of the portal: its results and bars."""

from __future__ import annotations

from .tables import Result, date, table, verdict

_ROWS = (
    ("pages", "first_kb", "heaviest page, first visit", "kB"),
    ("pages", "jobs_first_kb", "list of jobs, first visit", "kB"),
    ("pages", "first_requests", "requests of a first visit", ""),
    ("pages", "later_kb", "heaviest page, later visits", "kB"),
    ("pages", "own_script_gzip_kb", "our scripts, gzip", "kB"),
    ("pages", "all_scripts_gzip_kb", "all scripts, gzip", "kB"),
    ("pages", "main_thread_seconds", "CPU of the page's main thread, curves drawn", "s"),
    ("pages", "layout_shift", "layout shift", ""),
    ("server", "server_p95_ms", "CPU of the API for a page, p95 of 20 requests", "ms"),
    ("latency", "latency_p50_s", "time from storing an event to painting it, median", "s"),
    ("latency", "latency_p95_s", "time from storing an event to painting it, p95", "s"),
    (
        "busy",
        "core_share",
        "CPU of the page's main thread at 10 events a second, share of a core",
        "",
    ),
    ("busy", "heap_growth", "growth of the page's heap during the events", ""),
    (
        "crowd",
        "core_share_above_idle",
        "extra CPU of the API with 200 watchers, share of a core",
        "",
    ),
    ("crowd", "memory_growth_mb", "memory growth of the API with 200 watchers", "MB"),
    (
        "restart",
        "back_seconds",
        "time until the page is live again after a restart of the API",
        "s",
    ),
    ("restart", "missing", "steps missing after the restart", ""),
    ("restart", "doubled", "steps doubled after the restart", ""),
)
"""Each row has four values: a part of the results, a key in this part, a description and a unit."""


def portal(results: list[Result]) -> str:
    words = (
        "## The portal\n\n"
        "Measurements in Chromium, with 10,000 jobs, a run of 100,000 steps and 10,000 samples "
        "(`python -m benchmarks.portal`; `portal.json`).\n"
    )
    if not results:
        return f"{words}\n**Open**: no result of `python -m benchmarks.portal` yet.\n"
    [line] = results
    rows = [
        (meaning, f"{line[part][name]:g} {unit}".strip() + _bar(line, name))
        for part, name, meaning, unit in _ROWS
        if name in line.get(part, {})
    ]
    return f"{words}\n{table(('figure', date(line)), rows)}"


def _bar(line: Result, name: str) -> str:
    if name not in line["bars"]:
        return ""
    return verdict(name not in line["missed"], f"{line['bars'][name]:g}")
