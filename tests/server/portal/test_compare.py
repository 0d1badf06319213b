"""Page that compares jobs: results, differences, axes, completions side by side, downloads."""

from __future__ import annotations

import csv
import io
from functools import partial
from typing import Any

import pytest
from sqlalchemy import update

from tunesmith_server.models import JobRow

from ...cpu_time import cpu_p95
from ..actors import Server
from ..callers import metrics
from ..test_comparison import trained
from ..test_isolation import statements_of
from ..test_run_reports import run_report
from ..test_samples import packed, sample, told
from .browser import signed_in
from .hostile import TEXTS
from .page_checks import Document, check_links, check_page
from .test_job_page import METHOD


def address(*job_ids: str, part: str = "", **query: str) -> str:
    pairs = "".join(f"&{name}={value}" for name, value in query.items())
    return f"/portal/compare{part}?jobs={','.join(job_ids)}{pairs}"


@pytest.fixture
def pair(server: Server) -> list[str]:
    slow = trained(server, [3.0, 1.0, 2.0, 2.5], suffix="slow", recipe={"lora": {"r": 8}})
    fast = trained(server, [3.0, 2.0], suffix="fast", recipe={"lora": {"r": 16}})
    return [slow, fast]


def cells(document: Document, region: str) -> list[list[str]]:
    """Return the texts of a table's cells, row by row."""
    rows: list[list[str]] = []
    start = document.elements.index(document.with_id(region))
    for item in document.elements[start:]:
        if item.tag == "section":
            break
        if item.tag == "tr":
            rows.append([])
        if item.tag in ("th", "td"):
            rows[-1].append(" ".join(item.text.split()))
    return rows


def test_results_and_differences_stand_side_by_side(server: Server, pair: list[str]) -> None:
    browser = signed_in(server)
    document = check_page(browser.page(address(*pair)))
    check_links(browser, document)
    head, slow, fast = cells(document, "h-results")
    assert head[3:] == ["Training loss, last", "Best", "From the best job"]
    assert (slow[:2], slow[3:]) == (["1 slow", "Succeeded"], ["2.5", "1 step 2", "best"])
    assert (fast[:2], fast[3:]) == (["2 fast", "Succeeded"], ["2", "2 step 2", "+1"])
    differs = {row[0]: row[1:] for row in cells(document, "h-differs")[1:]}
    assert differs["lora.r"] == ["8", "16"]
    assert "equal contents" in differs["training_file"][0]
    assert "model" not in differs
    [chart] = document.all("ts-chart")
    assert chart.attributes["data-series"] == "train_loss.1:slow,train_loss.2:fast"
    call = next(item for item in document.all("details") if item.attributes.get("class") == "api")
    assert f"/v1/fine_tuning/compare?jobs={pair[0]},{pair[1]}&axis=step" in call.text
    assert f"tunesmith jobs compare {pair[0]} {pair[1]}" in call.text


def test_hosts_and_versions_that_differ_are_shown(server: Server) -> None:
    job_ids = []
    for host, torch in (("gpu-1", "2.9"), ("<b>gpu-2", "2.10")):
        job_ids.append(server.create_job(server.good_file(), seed=1))
        claim = server.worker.claim()
        report = run_report(1, device="cpu", host=host, versions={"torch": torch, "trl": "1"})
        server.worker.report(claim, run_report=report)
        server.worker.succeed(claim)
    document = check_page(signed_in(server).page(address(*job_ids)))
    differs = {row[0]: row[1:] for row in cells(document, "h-differs")[1:]}
    assert (
        differs.items()
        >= {"host": ["gpu-1", "<b>gpu-2"], "versions.torch": ["2.9", "2.10"]}.items()
    )
    assert differs.keys().isdisjoint({"device", "versions.trl"})


@pytest.mark.parametrize(
    ("axis", "last"), [("step", [4, 2]), ("tokens", [400, 200]), ("hours", [2.0, 1.0])]
)
def test_curves_have_a_common_axis(
    server: Server, pair: list[str], axis: str, last: list[float]
) -> None:
    browser = signed_in(server)
    document = check_page(browser.page(address(*pair, axis=axis, at="1.5", x="1-2")))
    shown = document.with_id("job").attributes
    assert (shown["data-at"], shown["data-zoom"]) == ("1.5", "1-2")
    [other] = {item.attributes["href"] for item in document.all("a") if item.text == "Steps"}
    assert ("at=" in other, "x=" in other) == (False, False)
    assert (shown["data-axis"], shown["data-query"]) == (axis, f"jobs={','.join(pair)}&axis={axis}")
    curves = browser.get(f"/portal/compare/curves?{shown['data-query']}").json()["curves"]
    lines = [curves[f"train_loss.{number}"] for number in (1, 2)]
    ends = [line["steps"][-1] if "steps" in line else sum(line["by"]) for line in lines]
    assert ends == pytest.approx(last, rel=1e-3)
    table = browser.get(f"/portal/compare/curves.csv?{shown['data-query']}").text
    rows = list(csv.reader(io.StringIO(table)))
    assert rows[0] == ["metric", "job", axis, "value"]
    assert len(rows) == 7
    assert rows[4] == ["train_loss", pair[0], rows[4][2], "2.5"]
    assert float(rows[4][2]) == pytest.approx(last[0], rel=1e-3)


def test_results_and_settings_are_tables_for_spreadsheets(server: Server, pair: list[str]) -> None:
    browser = signed_in(server)
    links = [
        item.attributes.get("href", "") for item in Document(browser.page(address(*pair))).all("a")
    ]
    parts = {}
    for part in ("results", "settings"):
        [link] = [link for link in links if f"/{part}.csv" in link]
        parts[part] = list(csv.reader(io.StringIO(browser.get(link).text)))
    header, first, second = parts["results"]
    assert header[:5] == ["job", "name", "state", "step", "metric"]
    assert [row[0] for row in (first, second)] == pair
    assert sorted(row[-1] == "0.0" for row in (first, second)) == [False, True]
    assert parts["settings"][0] == ["setting", *pair]
    assert ["lora.r", "8", "16"] in parts["settings"]


def test_curves_are_compressed(server: Server) -> None:
    losses = [2.0 + step % 7 / 100 for step in range(400)]
    jobs = [trained(server, losses, seed=seed) for seed in (1, 2)]
    reply = signed_in(server).get(address(*jobs, part="/curves"))
    assert reply.headers["content-encoding"] == "gzip"
    assert int(reply.headers["content-length"]) < len(reply.content) / 3


def test_a_form_sends_the_picked_jobs_and_a_wrong_number_is_told(
    server: Server, pair: list[str]
) -> None:
    browser = signed_in(server)
    page = browser.page(f"/portal/compare?jobs={pair[0]}&jobs={pair[1]}&jobs={pair[0]}")
    assert "Compare 2 jobs" in page
    for query in ("", f"?jobs={pair[0]}", "?jobs=" + ",".join(f"ftjob-{n}" for n in range(9))):
        assert (
            "Pick 2 to 8 jobs"
            in check_page(browser.page(f"/portal/compare{query}")).all("main")[0].text
        )
        for part in ("/curves", "/curves.csv", "/completions"):
            assert browser.get(f"/portal/compare{part}{query}").status_code == 400
    assert browser.get(address(pair[0], "ftjob-none")).status_code == 404


def test_running_jobs_are_followed(server: Server, pair: list[str]) -> None:
    job_id = server.create_job(server.good_file(), suffix="now")
    claim = server.worker.claim()
    server.worker.report(claim, events=[metrics(1, 1, train_loss=2.0, total_steps=9)])
    browser = signed_in(server)
    document = check_page(browser.page(address(*pair, job_id)))
    watched = [item.attributes["data-watch"] for item in document.all("li")
               if "data-watch" in item.attributes]  # fmt: skip
    assert watched[:2] == ["", ""]
    assert watched[2].startswith(f"{job_id}:")
    server.worker.report(claim, events=[metrics(2, 2, train_loss=1.5, total_steps=9)])
    part = Document(browser.page(address(*pair, job_id, part="/parts")))
    assert part.with_id("tables").attributes["hx-swap-oob"] == "outerMorph"
    assert cells(part, "h-results")[3][3:5] == ["1.5", "1.5 step 2"]


def reinforced(server: Server, suffix: str, contents: dict[int, list[dict[str, Any]]]) -> str:
    """Create a reinforcement job and report its samples by step."""
    file_id = server.upload()
    server.validate(file_id, usable_for=["reinforcement"], prompt_format="messages")
    job_id = server.create_job(file_id, suffix=suffix, method=METHOD)
    claim = server.worker.claim()
    events = [
        metrics(number, step, reward=0.5, total_steps=9) for number, step in enumerate(contents, 1)
    ]
    events += [
        told(server, claim, number, step, packed(samples))
        for number, (step, samples) in enumerate(contents.items(), len(contents) + 1)
    ]
    server.worker.report(claim, events=events)
    return job_id


def test_completions_of_the_same_prompt_stand_side_by_side(server: Server) -> None:
    one = reinforced(server, "one", {
        1: [sample(1, place, prompt=f"prompt {place // 2}") for place in range(4)],
    })  # fmt: skip
    other = reinforced(server, "other", {
        3: [sample(3, place, prompt=f"prompt {place // 2}", row=70) for place in range(4)],
        5: [sample(5, place, prompt="prompt 1", reward=0.25) for place in range(2)],
    })  # fmt: skip
    browser = signed_in(server)
    assert "Completions of the same prompt" in browser.page(address(one, other))
    document = check_page(browser.page(address(one, other, part="/completions", row="1")))
    links = [item.attributes["href"] for item in document.all("a")]
    rows = [link.partition("row=")[2] for link in links if link.endswith("#h-side")]
    assert rows, document.all("main")[0].text
    assert rows == ["0#h-side", "1#h-side"]
    left, right = document.with_id("side-1").text, document.with_id("side-2").text
    assert "step 1, mean reward 0.5" in left
    assert "step 5, mean reward 0.25" in right
    shown = document.all("main")[0].text
    assert shown.index("step 1, place 3") < shown.index("step 1, place 2")
    assert "step 3, place 0" not in shown
    zero = browser.page(address(one, other, part="/completions", row="0"))
    assert "step 3, place 1" in zero


def test_hostile_names_and_completions_are_inert(server: Server) -> None:
    texts = [text.replace("\0", "") for text in TEXTS]
    ids = []
    for number in range(0, 8, 4):
        samples = [sample(1, place, prompt="same", completion=text, group=0)
                   for place, text in enumerate(texts[number * 7 : number * 7 + 30])]  # fmt: skip
        ids.append(reinforced(server, "x", {1: samples}))
    browser = signed_in(server)
    for first in range(0, len(texts), 2):
        with server.user_session() as session, session.begin():
            for job_id, text in zip(ids, texts[first:], strict=False):
                named = {"suffix": text[:64]}
                session.execute(update(JobRow).where(JobRow.id == job_id).values(named))
        for path in (address(*ids), address(*ids, part="/completions")):
            document = check_page(browser.page(path))
            assert not document.all("iframe", "img", "base", "style", "object", "template")


def test_the_number_of_queries_does_not_grow_with_the_jobs(server: Server) -> None:
    ids, file_id = [], server.good_file()
    for seed in range(8):
        ids.append(server.create_job(file_id, seed=seed))
        steps = [1] if seed == 7 else [1, 600, 1100, 1200]  # the first chunk is packed at 1100
        batch = [metrics(n, at, train_loss=1 / at, trained_tokens=at) for n, at in enumerate(steps)]
        claim = server.worker.claim()
        server.worker.report(claim, events=batch, run_report=run_report(1))
        if seed < 6:
            server.worker.succeed(claim)
    browser = signed_in(server)
    statements = statements_of(server)

    def queries(path: str) -> int:
        counts = []
        for _ in range(2):  # a slow request may also store when the session was last seen
            statements.clear()
            browser.page(path)
            counts.append(len(statements))
        return min(counts)

    for axis in ("step", "tokens", "hours"):
        for part in ("", "/parts", "/curves", "/curves.csv"):
            many, few = [address(*some, part=part, axis=axis) for some in (ids, ids[-2:])]
            queries(few)  # fills caches
            assert queries(many) == queries(few) <= 12, (many, few)


@pytest.mark.timing
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # it measures our process
def test_the_page_costs_little_with_long_curves(server: Server) -> None:
    """Eight jobs of 2,000 steps, page and curves: at most 60 ms of CPU each."""
    ids = []
    for seed in range(8):
        ids.append(server.create_job(server.good_file(), seed=seed))
        claim = server.worker.claim()
        for start in range(1, 2001, 500):
            batch = [
                metrics(step, step, train_loss=1 / step, trained_tokens=step, total_steps=2000)
                for step in range(start, start + 500)
            ]
            server.worker.report(claim, events=batch)
        server.worker.succeed(claim)
    browser = signed_in(server)
    for path in (address(*ids), address(*ids, part="/curves", axis="tokens")):
        assert cpu_p95([partial(browser.page, path)] * 20, 0.06) <= 0.06, path
