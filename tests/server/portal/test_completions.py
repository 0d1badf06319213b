"""Completions of a job: prompts of a step, filters, one prompt across steps, graders."""

from __future__ import annotations

import csv
import io
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from tunesmith_schema import SampleStep
from tunesmith_server.models import AuditRow
from tunesmith_server.portal.completions import drawing
from tunesmith_server.portal.completions.changes import pieces
from tunesmith_server.portal.completions.reading import nearest
from tunesmith_server.portal.text import visible

from ...cpu_time import cpu_p95
from ..actors import Server
from ..callers import metrics
from ..test_sample_cost import fill
from ..test_samples import packed, sample, told
from .browser import Browser, signed_in
from .hostile import TEXTS
from .page_checks import Document, check_links, check_page
from .test_job_page import METHOD

PART = {"hx-request": "true"}


def reinforced(server: Server, contents: dict[int, list[dict[str, Any]]], **body: Any) -> str:
    """Create a reinforcement job whose rows have the answer 4, and report its samples by step."""
    row = b'{"messages": [{"role": "user", "content": "2 + 2 ="}], "answer": "4"}\n'
    file_id = server.upload(row * 3)
    server.validate(file_id, usable_for=["reinforcement"], prompt_format="messages")
    job_id = server.create_job(file_id, **{"method": METHOD, **body})
    claim = server.worker.claim()
    events = [
        metrics(number, step, reward=0.1 * step, total_steps=9)
        for number, step in enumerate(contents, 1)
    ]
    events += [
        told(server, claim, number, step, packed(samples))
        for number, (step, samples) in enumerate(contents.items(), len(contents) + 1)
    ]
    server.worker.report(claim, events=events)
    return job_id


def address(job_id: str, **query: object) -> str:
    pairs = "&".join(f"{name}={value}" for name, value in query.items())
    return f"/portal/jobs/{job_id}/completions?{pairs}"


def texts(browser: Browser, path: str) -> list[str]:
    """Return the shown completions of a page, in order."""
    document = check_page(browser.page(path))
    links = [item for item in document.all("a") if "#opened" in item.attributes["href"]]
    return [link.text for link in links if "td" in link.inside]


@pytest.fixture
def job_id(server: Server) -> str:
    """Job with a prompt of equal rewards and one of different rewards, at the steps 2 and 5."""
    return reinforced(server, {
        2: [sample(2, place, reward=0.5) for place in range(2)]
        + [sample(2, place, row=2) for place in (2, 3)],
        5: [sample(5, 0, finish_reason="length"), sample(5, 1, reward=None, row=2, group=1)],
    })  # fmt: skip


def test_prompts_of_a_step_come_by_the_range_of_their_rewards(server: Server, job_id: str) -> None:
    browser = signed_in(server)
    document = check_page(browser.page(address(job_id, step=2)))
    check_links(browser, document)
    groups = [item for item in document.all("details") if item.attributes.get("class") == "group"]
    assert [group.attributes["id"] for group in groups] == ["group-2-1", "group-2-0"]
    assert ["teaches nothing" in group.text for group in groups] == [False, True]
    rects = [item.attributes for item in document.all("rect")]
    assert [(rect["class"], rect["height"]) for rect in rects] == [
        ("r0", "2.0"), ("r4", "20.0"), ("r2", "11.0"), ("r2", "11.0"),
    ]  # fmt: skip
    heads = [item.text for item in document.all("th")][:6]
    assert heads == ["Reward", "right", "short", "Tokens", "End", "Completion"]
    slider = document.with_id("step").attributes
    assert [slider[name] for name in ("min", "max", "step", "value")] == ["2", "5", "3", "2"]
    assert "step 5, place 0" in browser.page(address(job_id))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"step": 2, "reward_gt": "0.5"}, ["step 2, place 3"]),
        ({"step": 2, "reward_lt": "0.5"}, ["step 2, place 2"]),
        ({"all": 1, "finish_reason": "length"}, ["step 5, place 0"]),
        ({"all": 1, "ungraded": 1}, ["step 5, place 1"]),
        ({"all": 1, "q": "PLACE+1"}, ["step 5, place 1", "step 2, place 1"]),
        ({"step": 2, "q": "none"}, []),
        ({"step": 2, "reward_gt": "wrong", "finish_reason": "x", "reward_lt": "0.4"}, [
            "step 2, place 2"]),
    ],
)  # fmt: skip
def test_filters_select(
    server: Server, job_id: str, query: dict[str, object], expected: list[str]
) -> None:
    assert texts(signed_in(server), address(job_id, **query)) == expected


def test_shown_completions_are_a_table_for_spreadsheets(server: Server, job_id: str) -> None:
    browser = signed_in(server)
    for query, expected in (
        ({"step": 2, "reward_gt": "0.5"}, ["step 2, place 3"]),
        ({"all": 1, "q": "PLACE+1"}, ["step 5, place 1", "step 2, place 1"]),
        ({"row": 2}, ["step 2, place 2", "step 2, place 3", "step 5, place 1"]),
    ):
        page = check_page(browser.page(address(job_id, **query)))
        [link] = [
            item.attributes["href"]
            for item in page.all("a")
            if "completions.csv" in item.attributes["href"]
        ]
        rows = list(csv.DictReader(io.StringIO(browser.get(link).text)))
        assert [row["completion"] for row in rows] == expected
        assert {"step", "reward", "score_right", "prompt"} <= rows[0].keys()


def test_one_prompt_is_followed_across_steps(server: Server) -> None:
    said = {1: "it is 5", 2: "it is 4", 4: "it is 4 now"}
    job_id = reinforced(server, {
        step: [sample(step, place, completion=text, row=3) for place in range(2)]
        for step, text in said.items()
    })  # fmt: skip
    browser = signed_in(server)
    document = check_page(browser.page(address(job_id, row=3, place=1)))
    moments = [item.text for item in document.all("li") if "Step" in item.text]
    assert [text.split()[1] for text in moments] == ["1", "2", "4"]
    assert [item.text for item in document.all("mark")] == ["4", " now"]
    assert "No step has a completion of this row" in browser.page(address(job_id, row=7))


def test_a_completion_opens_whole_with_input_and_output_of_each_grader(server: Server) -> None:
    long = "word " * 200 + "4"
    job_id = reinforced(server, {1: [sample(1, 0, completion=long, row=2, scores={"equal": 0.25})]})
    browser = signed_in(server)
    name = f"ftsample-{job_id.partition('-')[2]}-1-0"
    document = check_page(browser.page(address(job_id, sample=name)))
    opened = document.with_id("opened").text
    assert long in opened
    assert "string check, score 0.25" in opened
    grading = next(
        item for item in document.all("section") if item.attributes.get("class") == "grading"
    )
    assert [item.text.strip() for item in document.all("dd") if "section" in item.inside][-3:] == [
        long, "4", "eq",
    ]  # fmt: skip
    assert "input" in grading.text
    assert browser.get(address(job_id, sample=f"{name}9")).status_code == 404
    with server.database.read() as session:
        reads = session.scalars(
            select(AuditRow.target).where(AuditRow.action == "GET /files/{file_id}/rows")
        ).all()
    assert reads == [{"file_id": server.job(job_id)["training_file"]}]
    copied = [item.attributes["data-copy"] for item in document.all("button")
              if "data-copy" in item.attributes]  # fmt: skip
    title, link = copied[0].split("\n")
    assert title.endswith(", step 1: reward 0")
    assert f"sample={name}" in link
    assert browser.get(link.removeprefix("http://testserver")).status_code == 200


def test_the_slider_moves_in_its_direction_and_the_address_names_the_step(
    server: Server, job_id: str
) -> None:
    browser = signed_in(server)
    for was, wanted, shown in ((2, 3, 5), (5, 4, 2), (5, 9, 5)):
        reply = browser.get(address(job_id, step=wanted, was=was), headers=PART)
        pushed = reply.headers["hx-push-url"]
        assert f"Step {shown}" in reply.text, (was, wanted)
        if shown == wanted:
            assert pushed == f"/portal/jobs/{job_id}/completions?step={shown}"
    steps = [SampleStep(id=str(step), step=step, count=1) for step in (2, 5, 9)]
    assert [step.step for number in (1, 2, 8, 20) if (step := nearest(steps, number))] == [
        2, 2, 5, 9,
    ]  # fmt: skip
    assert drawing.track(steps, steps[1]).stride == 1


def test_a_job_without_completions_says_so(server: Server) -> None:
    supervised = server.create_job(server.good_file())
    browser = signed_in(server)
    assert "Only reinforcement jobs" in browser.page(address(supervised))
    check_page(browser.page(address(supervised)))
    assert browser.get(address("ftjob-none")).status_code == 404


def test_changed_words_are_marked() -> None:
    assert pieces(None, "a b") == [("a b", False)]
    assert pieces("a b", "a b") == [("a b", False)]
    assert pieces("a b c", "a x c") == [("a ", False), ("x", True), (" c", False)]
    whole = "word " * 5000
    assert "".join(text for text, _ in pieces("other", whole)) == whole


def test_hostile_completions_are_inert(server: Server) -> None:
    hostile = [text.replace("\0", "") for text in TEXTS]
    samples = [
        sample(1, place, prompt=text, completion=text, scores={text[:64] or "x": 1.0}, row=2,
               group=place // 4)
        for place, text in enumerate(hostile)
    ]  # fmt: skip
    job_id = reinforced(server, {1: samples[:30], 2: samples[30:]})
    browser = signed_in(server)
    head = f"ftsample-{job_id.partition('-')[2]}"
    paths = [address(job_id, step=step) for step in (1, 2)] + [
        address(job_id, row=2), address(job_id, all=1),
        *(address(job_id, sample=f"{head}-1-{place}") for place in range(30)),
    ]  # fmt: skip
    for path in paths:
        document = check_page(browser.page(path))
        assert not document.all("iframe", "img", "base", "style", "object", "template")
    for text in TEXTS:
        found = browser.get(f"/portal/jobs/{job_id}/completions", params={"q": text[:300]})
        assert found.status_code == 200
        field = Document(found.text).with_id("text").attributes["value"]
        assert field == visible(text.replace("\0", "").strip()[:200])


@pytest.mark.timing
def test_filters_in_ten_thousand_samples_cost_little(server: Server) -> None:
    """Pages and filters cost at most 200 ms of CPU (p95)."""
    job_id = server.create_job(server.good_file())
    fill(server, job_id, steps=100, each=100)
    browser = signed_in(server)
    queries: list[dict[str, Any]] = [
        {"step": 50}, {"step": 7, "reward_gt": 0.5}, {"step": 7, "q": "0.1"},
        {"all": 1, "q": "not+there"}, {"all": 1, "ungraded": 1}, {"row": 3},
    ]  # fmt: skip
    calls = [partial(browser.page, address(job_id, **query)) for query in queries * 5]
    assert cpu_p95(calls, 0.2) <= 0.2
