"""Section on the queue: simulated weeks, and the cost of a claim.

A claim is the request by which a worker takes a job.
"""

from __future__ import annotations

from collections.abc import Iterator

from .tables import NOT_MEASURED, Result, date, table, verdict

CLAIM_MS, JAIN, SHARE_ERROR, WAIT_SECONDS, ESTIMATE_ERROR = 5.0, 0.95, 0.05, 60.0, 0.25
PARTS = ("equal", "weighted", "replay")


def schedule(results: list[Result]) -> str:
    words = (
        "## The queue\n\n"
        "The first table shows the cost of a claim with 10,000 queued jobs; `CPU` includes the "
        "database server. The second table shows the newest run of each simulated week of 2,000 "
        "jobs (`python -m benchmarks.schedule`; `schedule.json`).\n"
    )
    if not results:
        return words + "\n**Open**: no result of `python -m benchmarks.schedule` yet.\n"
    head = ("database", "statements", "p99 wall", "p99 CPU", "median CPU", "date")
    claims = table(head, _claims(results))
    columns = ("lost, doubled, starved", "Jain's index", "worst share", "interactive p95")
    weeks = table(("week", *columns, "estimates", "date"), _weeks(results))
    return f"{words}\n{claims}\n{weeks}"


def _claims(results: list[Result]) -> Iterator[tuple[object, ...]]:
    for line in results:
        for row in line.get("claim", ()):
            wall = row["wall_p99_ms"]
            yield (
                row["database"],
                row["statements"],
                f"{wall:.1f} ms" + verdict(wall < CLAIM_MS, f"{CLAIM_MS:g} ms"),
                f"{row['cpu_p99_ms']:.1f} ms",
                f"{row['cpu_p50_ms']:.1f} ms",
                date(line),
            )


def _weeks(results: list[Result]) -> Iterator[tuple[object, ...]]:
    by_time = sorted(results, key=lambda line: str(line["at"]))
    newest = {part: line for line in by_time for part in PARTS if part in line}
    for part, line in newest.items():
        row = line[part]
        jain, share, wait = (
            row[name] for name in ("jain", "worst_share_error", "interactive_wait_p95_s")
        )
        error = row["estimate_error_median"]
        yield (
            part,
            f"{row['lost']}, {row['doubled']}, {row['starved']}",
            f"{jain:.3f}" + verdict(jain >= JAIN, f"{JAIN:g}"),
            f"{share:.1%}" + verdict(share <= SHARE_ERROR, f"{SHARE_ERROR:.0%}"),
            f"{wait:.0f} s" + verdict(wait < WAIT_SECONDS, f"{WAIT_SECONDS:.0f} s"),
            NOT_MEASURED
            if error is None
            else f"{error:.0%}" + verdict(error <= ESTIMATE_ERROR, f"{ESTIMATE_ERROR:.0%}"),
            date(line),
        )
