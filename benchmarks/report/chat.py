"""Section that compares the inference process with transformers."""

from __future__ import annotations

from .tables import Result, against_bar, date, table


def chat(results: list[Result]) -> str:
    words = (
        "## Chat\n\n"
        "The inference process with a Qwen2 of 2 M parameters in fp32 (`python -m "
        "benchmarks.chat`; `chat.json`). `32 streams` are tokens per second over HTTP, `one "
        "stream` is the ratio to a single stream, `transformers` the ratio to the faster of "
        "`generate_batch` and `transformers serve`. `stall` is the 99th percentile of the time "
        "between two tokens divided by the median, while another user sends 400-token prompts.\n"
    )
    if not results:
        return words + "\n**Open**: no result of `python -m benchmarks.chat` yet (`chat.json`).\n"
    rows = (
        (
            f"{row['first_token_ms']:.1f} ms",
            f"{row['tokens_per_second']['32']:,.0f}",
            against_bar(row["stream_ratio"], row["bars"]["stream_ratio"], at_least=True),
            against_bar(row["speed_ratio"], row["bars"]["speed_ratio"], at_least=True),
            against_bar(row["stall_ratio"], row["bars"]["stall_ratio"], at_least=False),
            date(row),
        )
        for row in results
    )
    head = ("first token", "32 streams", "one stream", "transformers", "stall", "date")
    return f"{words}\n{table(head, rows)}"
