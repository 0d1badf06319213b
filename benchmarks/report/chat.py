"""Section that compares the inference process with transformers."""

from __future__ import annotations

from .tables import Result, against_bar, date, table


def chat(results: list[Result]) -> str:
    words = (
        "## Chat\n\n"
        "Speed of the inference process in fp32 (`python -m benchmarks.chat --model FOLDER`; "
        "`chat.json`). `32 streams` is the speed of 32 streams over HTTP, in tokens per second. "
        "`one stream` is `32 streams` divided by the speed of a single stream. `transformers` is "
        "`32 streams` divided by the faster of `generate_batch` and `transformers serve`. `stall` "
        "is the 99th percentile of the time between two tokens, divided by the median, while "
        "another user sends prompts of 400 tokens.\n"
    )
    if not results:
        return words + "\n**Open**: no result of `python -m benchmarks.chat` yet (`chat.json`).\n"
    rows = (
        (
            row["model"],
            f"{row['first_token_ms']:.1f} ms",
            f"{row['tokens_per_second']['32']:,.0f}",
            against_bar(row["stream_ratio"], row["bars"]["stream_ratio"], at_least=True),
            against_bar(row["speed_ratio"], row["bars"]["speed_ratio"], at_least=True),
            against_bar(row["stall_ratio"], row["bars"]["stall_ratio"], at_least=False),
            date(row),
        )
        for row in results
    )
    head = ("model", "first token", "32 streams", "one stream", "transformers", "stall", "date")
    return f"{words}\n{table(head, rows)}"


def beside_training(results: list[Result]) -> str:
    words = (
        "### A training job beside a busy chat\n\n"
        "`step time` is the step time of a job while eight clients chat, divided by its step time "
        "while chat is stopped. Chat runs for four seconds, then stops for four seconds, on two "
        "cores (`python -m benchmarks.chat --part training`; `chat_training.json`). `interval` is "
        "the 90 % confidence interval of `step time`. `load` is the load average of the machine; "
        "more than 2 means that other programs ran too.\n"
    )
    if not results:
        return words + "\n**Open**: no result yet (`chat_training.json`).\n"
    rows = (
        (
            row["model"],
            against_bar(row["slowdown"], row["slowdown_bar"], at_least=False),
            f"{row['interval'][0]:.2f} to {row['interval'][1]:.2f}",
            f"{row['chat_tokens_per_second']:,.0f} tokens/s",
            f"{row['load_average']:.1f}",
            date(row),
        )
        for row in results
    )
    return f"{words}\n{table(('model', 'step time', 'interval', 'chat', 'load', 'date'), rows)}"
