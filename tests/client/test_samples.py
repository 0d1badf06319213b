"""`job.samples` of the SDK, and `tunesmith jobs samples` on a screen of 80 columns."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import httpx
from rich.console import Console

from tunesmith import Sample
from tunesmith._cli.samples import MAX_CHARACTERS, render

from .conftest import Tunesmith
from .fakes import Script, client_of, job, page
from .local_server import LocalServer

PATH = "/v1/fine_tuning/jobs/ftjob-1/samples"


def sample(step: int, place: int, **other: Any) -> dict[str, Any]:
    return {
        "id": f"ftsample-1-{step}-{place}",
        "object": "fine_tuning.job.sample",
        "created_at": 1_700_000_000,
        "step": step,
        "group": place // 2,
        "row": 40 + place // 2,
        "prompt": f"Question {place // 2}?",
        "completion": f"Answer {place} of step {step}",
        "reward": 0.5,
        "scores": {"right": 1.0, "short": 0.25},
        "advantage": 0.7 if place % 2 else -0.7,
        "prompt_tokens": 12,
        "completion_tokens": 34,
        "finish_reason": "stop",
        **other,
    }


def shown(*samples: dict[str, Any]) -> str:
    out = StringIO()
    console = Console(file=out, width=80, markup=False, highlight=False, force_terminal=False)
    console.print(render([Sample.model_validate(one) for one in samples]))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return out.getvalue()


def test_the_sdk_fetches_all_pages_of_a_step() -> None:
    script = Script(
        httpx.Response(200, json=job(state="running")),
        httpx.Response(200, json=page(sample(3, 1), has_more=True)),
        httpx.Response(200, json=page(sample(3, 0))),
    )
    with client_of(script) as client:
        found = list(client.fine_tuning.jobs.retrieve("ftjob-1").samples(step=3))
    assert [item.completion for item in found] == ["Answer 1 of step 3", "Answer 0 of step 3"]
    assert found[0].scores == {"right": 1.0, "short": 0.25}
    queries = [dict(request.url.params) for request in script.requests[1:]]
    assert queries == [
        {"step": "3", "limit": "100"},
        {"step": "3", "limit": "100", "after": "ftsample-1-3-1"},
    ]


def test_a_prompt_is_shown_once_above_its_completions_in_order() -> None:
    text = shown(*[sample(step, place) for step in (2, 1) for place in (3, 2, 1, 0)])
    words = ["step 2, row 40", "Question 0?", "Answer 0 of step 2", "Answer 1 of step 2"]
    words += ["row 41", "Question 1?", "Answer 2 of step 2", "step 1, row 40", "Answer 0 of step 1"]
    places = [text.index(word) for word in words]
    assert places == sorted(places)
    assert text.count("Question 0?") == 2
    assert "reward 0.5  advantage -0.7  34 tokens  right 1, short 0.25" in text


def test_truncated_and_ungraded_completions_are_marked() -> None:
    odd = sample(1, 0, finish_reason="length", reward=None, advantage=0.0, scores={"right": None})
    text = shown(odd)
    assert "not graded  advantage +0  34 tokens, cut  right failed" in text


def test_long_texts_show_their_beginning_and_their_end() -> None:
    long = "first " + "x" * 5000 + " last"
    text = shown(sample(1, 0, completion=long))
    assert "first" in text
    assert "last" in text
    assert f"[... {len(long) - MAX_CHARACTERS:,} characters ...]" in text


def test_a_completion_cannot_control_the_terminal() -> None:
    text = shown(sample(1, 0, completion="\x1b[2Jgone\r[bold]x[/bold]\x9b1A\nÜ 数"))
    assert "\\x1b[2Jgone\\r[bold]x[/bold]\\x9b1A" in text
    assert "Ü 数" in text
    assert not {"\x1b", "\r", "\x9b"} & set(text)


def test_the_command_shows_a_step_or_the_api_s_json(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    answer = page(sample(3, 1), sample(3, 0), has_more=True)
    server.answers[f"GET {PATH}"] = answer
    done = tunesmith("jobs", "samples", "ftjob-1", "--step", "3", "--limit", "2")
    assert (done.exit_code, "Answer 0 of step 3" in done.stdout) == (0, True), done.output
    assert server.seen[0].target == f"{PATH}?step=3&limit=2"
    done = tunesmith("jobs", "samples", "ftjob-1", "--json")
    assert json.loads(done.stdout) == answer
    server.answers[f"GET {PATH}"] = page()
    done = tunesmith("jobs", "samples", "ftjob-1", "--step", "9")
    assert done.stdout == "ftjob-1 has no samples at step 9\n"


def test_a_step_without_samples_names_the_newest_with_samples(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    """Of several steps on the same completions, the first has the samples."""
    server.answers[f"GET {PATH}?step=4&limit=20"] = page()
    server.answers[f"GET {PATH}?limit=1"] = page(sample(3, 1), has_more=True)
    done = tunesmith("jobs", "samples", "ftjob-1", "--step", "4")
    assert done.stdout == "ftjob-1 has no samples at step 4; the newest are at step 3\n"
    assert json.loads(tunesmith("jobs", "samples", "ftjob-1", "--step", "4", "--json").stdout) == (
        page()
    )
