"""Page of a job: each state, both methods, orders, rights, filters, downloads, hostile texts."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from sqlalchemy import select

from tunesmith_schema import JobState
from tunesmith_schema.report_example import REINFORCEMENT_EXAMPLE, REPORT_EXAMPLE
from tunesmith_server.models import AuditRow, ReportRow
from tunesmith_server.portal.view import state_of

from ..actors import Server
from ..callers import event, metrics
from ..teams import caller
from .browser import Browser, signed_in
from .hostile import TEXTS
from .page_checks import Document, check_links, check_page

GRADER = {
    "type": "string_check", "name": "equal", "operation": "eq",
    "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
}  # fmt: skip
METHOD = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}


def path(job_id: str, part: str = "") -> str:
    return f"/portal/jobs/{job_id}{part}"


def started(server: Server, **body: Any) -> tuple[str, dict[str, Any]]:  # Any: JSON
    """Create a job, claim it and report three steps."""
    file_id = server.upload()
    server.validate(file_id, usable_for=["supervised", "reinforcement"], prompt_format="messages")
    job_id = server.create_job(file_id, suffix="first", **body)
    claim = server.worker.claim()
    steps = [
        metrics(
            step, step, train_loss=2.0 / step, learning_rate=1e-4, grad_norm=0.5,
            tokens_per_second=900.0, total_steps=10, trained_tokens=7,
        )
        for step in (1, 2, 3)
    ]  # fmt: skip
    for step in steps:
        server.worker.report(claim, events=[step])
    return job_id, claim


def store_report(server: Server, job_id: str, **changed: Any) -> None:  # Any: JSON
    content = {**REPORT_EXAMPLE, "job_id": job_id, **changed}
    with server.database.write.begin() as session:
        session.add(
            ReportRow(job_id=job_id, attempt=content["attempt"], updated_at=1.0, content=content)
        )


def verbs(document: Document) -> set[str]:
    """Return the orders that the page offers."""
    actions = [item.attributes["action"] for item in document.all("form")]
    found = {action.rpartition("/")[2] for action in actions if "/portal/jobs/" in action}
    known = {"pause", "resume", "stop", "cancel", "retry", "fork"}
    return found & known


STATES: dict[JobState, set[str]] = {
    JobState.VALIDATING_FILES: {"cancel", "stop", "fork"},
    JobState.QUEUED: {"pause", "cancel", "stop", "fork"},
    JobState.RUNNING: {"pause", "cancel", "stop", "fork"},
    JobState.PAUSING: {"resume", "cancel", "stop", "fork"},
    JobState.PAUSED: {"resume", "cancel", "stop", "fork"},
    JobState.SUCCEEDED: {"fork"},
    JobState.FAILED: {"retry", "fork"},
    JobState.CANCELLED: {"retry", "fork"},
}


def test_each_state_offers_the_orders_that_it_accepts(server: Server) -> None:
    job_id, _ = started(server)
    server.add_resume_points(job_id, 2)
    browser = signed_in(server)
    for state, expected in STATES.items():
        ended = 2e9 if state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED) else None
        server.change_job(job_id, state=state, finished_at=ended)
        document = check_page(browser.page(path(job_id)))
        assert verbs(document) == expected, state
        head = document.with_id("head")
        assert head.attributes["data-state"] == state
        assert state_of(state).label in head.text
    server.change_job(job_id, state=JobState.RUNNING, finished_at=None, cancel_requested=True)
    document = check_page(browser.page(path(job_id)))
    assert verbs(document) == {"fork"}
    assert "Cancelling" in document.with_id("head").text


def test_a_running_job_shows_its_figures_its_curves_and_its_parts(server: Server) -> None:
    job_id, claim = started(server)
    checks = {"loss": {"state": "failed", "detail": "2.1 against 2.0"}}
    data = {"checks": checks, "seconds": 1.5}
    server.worker.report(
        claim,
        events=[
            event(4, "self-check: 1 check failed", data=data),
            event(5, "the loss is not finite", level="warn", data={"step": 3}),
        ],
    )
    store_report(server, job_id, live=True)
    server.add_resume_points(job_id, 2)
    browser = signed_in(server)
    document = check_page(browser.page(path(job_id)))
    check_links(browser, document)
    figures = {item.attributes["data-figure"]: item.text for item in document.all("dd")
               if "data-figure" in item.attributes}  # fmt: skip
    assert figures["train_loss"] == "0.6667"
    assert figures["trained_tokens"] == "7"
    assert "valid_loss" not in figures
    head = document.with_id("head").text
    assert re.search(r"3 of 10 steps\s*about [0-9]+ (s|min) left", head), head
    paths = [item for item in document.all("path") if "d" in item.attributes]
    assert [item.attributes["d"] for item in paths[:1]] == ["m0 0 300 120 300 40"]
    why = document.with_id("why").text
    assert "WarningThe loss is not finite." in why
    assert "do not depend on its size." in document.with_id("time").text
    assert "Fork with eval_steps = 350" in why
    assert "0 of 1 passed" in document.with_id("check").text
    assert "2.1 against 2.0" in document.with_id("check").text
    seconds = document.with_id("time").text
    assert "Attempt 1, so far6 min 40 s" in seconds
    marks = [item for item in document.all("a") if "data-step" in item.attributes]
    assert [(item.attributes["data-step"], item.attributes["data-kind"]) for item in marks] == [
        ("2", "resume_point"),
        ("3", "warning"),
    ]
    forks = [item.attributes["href"] for item in document.all("a") if item.text == "Fork from here"]
    assert forks == [f"/portal/jobs/new?fork_from={job_id}&step=2"] * 2
    assert "tunesmith jobs create" in document.with_id("recipe").text
    part = browser.page(path(job_id, "/parts"))
    assert part.count('hx-swap-oob="outerMorph"') == 11
    assert "<html" not in part


def test_a_mark_of_a_checkpoint_leads_to_its_model(server: Server) -> None:
    job_id, claim = started(server)
    files = server.worker.store(claim, {"a.safetensors": b"x"})
    saved = event(4, kind="checkpoint", data={"step": 2}, files=files)
    server.worker.report(claim, events=[saved])
    browser = signed_in(server)
    document = check_page(browser.page(path(job_id)))
    check_links(browser, document)
    [mark] = [item for item in document.all("a") if item.attributes.get("data-step")]
    [result] = server.user.json(f"/v1/fine_tuning/jobs/{job_id}/lineage")["results"]
    assert (mark.text, mark.attributes["href"]) == (
        "Step 2: Checkpoint", f"/portal/models/{quote(result['model'])}",
    )  # fmt: skip
    chat = f"/portal/playground?model=tiny-llama&model={quote(result['model'])}"
    links = document.all("a")
    assert links[links.index(mark) + 1].attributes["href"] == chat


def test_validation_is_shown_if_the_job_has_validation_rows_or_values(server: Server) -> None:
    browser = signed_in(server)

    def validation(job_id: str) -> tuple[str, str | None]:
        """Return the main chart's curves, and the figure of the validation."""
        document = check_page(browser.page(path(job_id)))
        figures = {item.attributes.get("data-figure"): item.text for item in document.all("dd")}
        found = [value for name, value in figures.items() if name and name.startswith("valid_")]
        series = document.all("ts-chart")[0].attributes["data-series"]
        return series, found[0] if found else None

    job_id, claim = started(server)
    assert validation(job_id) == ("train_loss:Training", None)
    both = "train_loss:Training,valid_loss:Validation"
    split = started(server, recipe={"validation_split": 0.25})[0]
    assert validation(split) == (both, "\N{EN DASH}")
    with_file = server.create_job(server.good_file(), validation_file=server.good_file())
    assert validation(with_file) == (both, "\N{EN DASH}")
    server.worker.report(claim, events=[metrics(4, 4, valid_loss=0.5)])
    assert validation(job_id) == (both, "0.5")
    held_out = started(server, method=METHOD, recipe={"validation_split": 0.25})[0]
    assert validation(held_out) == ("reward:Reward,valid_reward:Held out", "\N{EN DASH}")


def test_a_reinforcement_job_has_its_own_curves(server: Server) -> None:
    job_id, claim = started(server, method=METHOD)
    told = metrics(4, 4, reward=0.5, reward_std=0.1, score_equal=0.25, kl=0.01, truncated_share=0.5)
    server.worker.report(claim, events=[told])
    store_report(server, job_id, rollouts=REINFORCEMENT_EXAMPLE["rollouts"])
    document = check_page(signed_in(server).page(path(job_id)))
    series = [item.attributes["data-series"] for item in document.all("ts-chart")]
    assert series[:2] == ["reward:Reward", "score_equal:equal"]
    assert document.all("ts-chart")[0].attributes["data-band"] == "reward_std"
    assert "Generated tokens per second" in document.with_id("time").text
    assert document.with_id("completions").attributes["hx-get"] == path(job_id, "/completions/part")
    gap = next(
        item for item in document.all("ts-chart") if "warning" in item.attributes["data-title"]
    )
    names = ("data-title", "data-series", "data-limit")
    assert [gap.attributes[name] for name in names] == [
        "Log-prob difference between generation and training (warning above 0.1)",
        "rollout_gap:Gap",
        "0.1",
    ]
    assert "Rollout enginenative" in document.with_id("time").text
    told = metrics(5, 5, importance_ratio=1.0, importance_ratio_max=2.5)
    server.worker.report(claim, events=[told])
    document = check_page(signed_in(server).page(path(job_id)))
    series = [item.attributes["data-series"] for item in document.all("ts-chart")]
    assert series[2].startswith("importance_ratio:Mean,importance_ratio_max:Largest,")


def test_failures_and_waits_say_what_to_do(server: Server) -> None:
    job_id, _ = started(server)
    error = {"code": "out_of_memory", "message": "too large", "hint": "use fewer rows"}
    server.change_job(job_id, state=JobState.FAILED, finished_at=2e9, error=error)
    browser = signed_in(server)
    why = check_page(browser.page(path(job_id))).with_id("why").text
    for text in (
        "Why it failed",
        "Too large.",
        "Use fewer rows.",
        "out_of_memory",
        "Retry from the beginning",
    ):
        assert text in why
    waiting = server.create_job(server.good_file(), suffix="waits")
    why = check_page(browser.page(path(waiting))).with_id("why").text
    assert "Why it waits: number 1 in the queue" in why
    assert "Code" in why
    assert why.count(" UTC") == 1, "an empty range is one time"


def test_orders_work_without_scripts_and_pressing_twice_is_once(server: Server) -> None:
    job_id, _ = started(server)
    server.add_resume_points(job_id, 2)
    browser = signed_in(server)
    for verb, state in (("pause", "pausing"), ("pause", "pausing"), ("resume", "running")):
        reply = browser.post(path(job_id, f"/{verb}"))
        assert (reply.status_code, reply.headers["location"]) == (303, path(job_id))
        assert server.job(job_id)["state"] == state
    asked = check_page(browser.page(path(job_id) + "?ask=cancel"))
    [dialog] = [item for item in asked.all("dialog") if "open" in item.attributes]
    assert "Cancel first?" in dialog.text
    assert "0 checkpoints stay" in dialog.text
    forks = [
        browser.post(
            path(job_id, "/fork"),
            data={"token": "t", "step": "2", "field": "learning_rate", "value": "5e-05"},
        ).headers["location"]
        for _ in range(2)
    ]
    assert forks[0] == forks[1]
    fork = server.job(forks[0].rpartition("/")[2])
    assert (fork["forked_step"], fork["recipe"]["learning_rate"]) == (2, 5e-05)
    lineage = check_page(browser.page(forks[0])).with_id("lineage").text
    assert "Fork of first" in " ".join(lineage.split())
    refused = browser.post(path(job_id, "/fork"), data={"step": "many"})
    assert refused.status_code == 400
    assert "step" in check_page(refused.text).all("main")[0].text
    assert browser.post(path(job_id, "/cancel")).status_code == 303
    assert server.job(job_id)["cancel_requested"] is True
    assert browser.post(path(job_id, "/retry")).status_code == 400


def test_orders_need_the_right_and_come_from_our_own_pages(server: Server) -> None:
    job_id, _ = started(server)
    server.add_resume_points(job_id, 2)
    reader = signed_in(server, caller(server, "viewer"))
    document = check_page(reader.page(path(job_id)))
    assert verbs(document) == set()
    assert "Your key may only read" in document.with_id("head").text
    browser = signed_in(server)
    for verb in ("pause", "resume", "stop", "cancel", "retry", "fork"):
        assert reader.post(path(job_id, f"/{verb}")).status_code == 403
        foreign = browser.post(path(job_id, f"/{verb}"), headers={"sec-fetch-site": "cross-site"})
        assert foreign.status_code == 403
    assert server.job(job_id)["state"] == "running"
    other = Browser(server)
    assert other.get(path(job_id)).status_code == 303
    assert browser.get(path("ftjob-none")).status_code == 404


def test_filters_of_events_are_in_the_address(server: Server) -> None:
    job_id, claim = started(server)
    told = [event(4 + number, f"message {number}", level="warn") for number in range(70)]
    server.worker.report(claim, events=told)
    browser = signed_in(server)
    page = check_page(browser.page(path(job_id) + "?level=warn&q=message&x=1-2&s=0.60"))
    items = [item for item in page.all("li") if item.attributes.get("id", "").startswith("event-")]
    assert len(items) == 60
    [older] = [item.attributes["href"] for item in page.all("a") if item.text == "Older events"]
    assert all(part in older for part in ("level=warn", "q=message", "x=1-2", "s=0.60"))
    rest = check_page(browser.page(older.partition("#")[0])).with_id("events").text
    assert "message 9" in rest
    assert "message 10" not in rest
    assert page.with_id("job").attributes["data-zoom"] == "1-2"
    none = check_page(browser.page(path(job_id) + "?kind=stalled&x=a&s=9&attempt=x"))
    assert "No event has this kind" in none.with_id("events").text
    assert none.with_id("job").attributes["data-zoom"] == ""


def test_curves_and_files_can_be_downloaded_and_are_in_the_audit_log(server: Server) -> None:
    job_id, claim = started(server)
    server.worker.succeed(claim)
    browser = signed_in(server)
    columns = browser.get(path(job_id, "/curves?names=train_loss&from=2")).json()
    assert columns["curves"]["train_loss"] == {"by": [2, 1], "values": [1, 0.66667]}
    table = browser.get(path(job_id, "/curves.csv?names=train_loss,grad_norm")).text
    assert table.splitlines()[:2] == ["step,grad_norm,train_loss", "1,0.5,2.0"]
    document = check_page(browser.page(path(job_id)))
    links = [item.attributes["href"] for item in document.all("a") if "download" in item.attributes]
    files = [link for link in links if "/files/" in link or "/weights/" in link]
    assert len(files) == 3
    for link in files:
        reply = browser.get(link)
        assert (reply.status_code, bool(reply.content)) == (200, True)
        assert reply.headers["content-disposition"].startswith("attachment")
        assert "default-src 'none'" in reply.headers["content-security-policy"]
    with server.database.read() as session:
        actions = list(session.scalars(select(AuditRow.action)))
    assert actions.count("GET /files/{file_id}/content") == 2
    assert actions.count("GET /adapters/{adapter_id}/content") == 1
    other = server.good_file(b'{"messages": []}\n')
    assert browser.get(path(job_id, f"/files/{other}")).status_code == 404


def test_hostile_texts_are_inert(server: Server) -> None:
    job_id, claim = started(server)
    texts = [text.replace("\0", "")[:500] for text in TEXTS]
    told = [event(4 + at, text or "-", level="warn") for at, text in enumerate(texts[:45])]
    server.worker.report(claim, events=told)
    browser = signed_in(server)
    calm = len(check_page(browser.page(path(job_id))).all("script"))
    for at in range(0, len(texts), 6):
        code, message, hint, name, notes, label = (*texts[at:], *texts)[:6]
        error = {"code": code[:60], "message": message, "hint": hint}
        server.change_job(
            job_id, state=JobState.FAILED, finished_at=2e9, error=error, name=name[:200],
            notes=notes, labels={label[:40]: label},
        )  # fmt: skip
        document = check_page(browser.page(path(job_id)))
        assert len(document.all("script")) == calm
        assert not document.all("iframe", "base", "style", "object", "template")
