"""Page that starts a job: states, rights, errors at their fields, idempotency, fork, repeats."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select

from tunesmith_server.models import AuditRow

from ..actors import Server
from ..teams import caller
from ..test_models import tuned
from .browser import Browser, signed_in
from .hostile import TEXTS
from .page_checks import Document, check_links, check_page

HERE = "/portal/jobs/new"
CHECK = f"{HERE}/check?validate_only=true"
GRADER = {
    "type": "string_check", "name": "equal", "operation": "eq",
    "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
}  # fmt: skip


def form(file_id: str, **changed: str) -> dict[str, str]:
    basic = {
        "model": "tiny-llama", "training_file": file_id, "method": "supervised",
        "recipe.tuning": "lora", "token": "t-1",
    }  # fmt: skip
    return basic | changed


def values(document: Document) -> dict[str, str]:
    """Return what the form of a page would send, without its selects."""
    found = {}
    for item in document.all("input", "textarea"):
        name = item.attributes.get("name", "")
        is_choice = item.attributes.get("type") in ("radio", "checkbox")
        if name and (not is_choice or "checked" in item.attributes):
            found[name] = item.attributes.get("value", item.text)
    return found


def errors(document: Document) -> dict[str, str]:
    return {
        item.attributes["id"][2:]: item.text
        for item in document.all("p")
        if item.attributes.get("class") == "error is-bad" and "hidden" not in item.attributes
    }


def started(browser: Browser, data: dict[str, str], path: str = HERE) -> str:
    reply = browser.post(path, data=data)
    assert reply.status_code == 303, reply.text[:2000]
    address = reply.headers["location"]
    assert address.endswith("#started")
    return str(address.removeprefix("/portal/jobs/").removesuffix("#started"))


def test_the_empty_form_has_each_recipe_field_with_its_meaning(server: Server) -> None:
    server.worker.hello()
    server.good_file()
    browser = signed_in(server)
    document = check_page(browser.page(HERE))
    check_links(browser, document)
    names = {item.attributes.get("name") for item in document.all("input", "select")}
    fields = server.user.json("/v1/fine_tuning/recipe")["data"]
    values_of = [field["id"] for field in fields if "object" not in field["types"]]
    assert set(values_of) <= names
    text = document.all("main")[0].text
    assert "Still needed: base model, training file." in text
    assert "rows.jsonl: 1 row, supervised" in text
    assert "Peak learning rate." in text
    assert "tiny-llama" in document.with_id("m-model").text


def test_the_form_tells_which_models_can_be_trained_now(server: Server) -> None:
    full = tuned(server, kind="full")
    server.worker.hello()
    browser = signed_in(server)
    document = Document(browser.page(HERE))
    offered = {item.attributes.get("value"): item.text for item in document.all("option")}
    assert offered["tiny-llama"] == "1 of 1 worker free"
    assert full in offered
    assert "tiny-llama (1 of 1 worker free)" in document.with_id("m-model").text
    server.create_job(server.good_file())
    server.worker.claim()
    data = form("file-none")
    reply = browser.post(CHECK, data=data)
    known = Document(reply.text).with_id("check").text
    assert f"0 of 1 worker free. {server.worker.name} has it." in known


def test_a_job_is_started_with_what_the_form_says(server: Server) -> None:
    browser = signed_in(server)
    data = form(
        server.good_file(),
        suffix="first",
        other='{"seed": 3, "metadata": {"team": "a"}}',
        **{
            "recipe.learning_rate": "1e-4", "recipe.lora.r": "8", "recipe.packing": "false",
            "recipe.add_tokens": "<a>, <b>",
        },
    )  # fmt: skip
    job = server.job(started(browser, data))
    assert (job["suffix"], job["seed"], job["metadata"]) == ("first", 3, {"team": "a"})
    recipe = job["recipe"]
    assert (recipe["learning_rate"], recipe["lora"]["r"], recipe["packing"]) == (1e-4, 8, False)
    assert recipe["add_tokens"] == ["<a>", "<b>"]
    assert recipe["early_stopping"] is None


def test_a_double_click_makes_one_job_and_another_request_gets_a_new_token(server: Server) -> None:
    browser, data = signed_in(server), form(server.good_file())
    first, second = started(browser, data), started(browser, data)
    assert first == second
    reply = browser.post(HERE, data=data | {"suffix": "other"})
    assert reply.status_code == 409
    document = check_page(reply.text)
    assert first in document.with_id("problems").text
    assert values(document)["token"] not in ("", "t-1")
    assert values(document)["suffix"] == "other"


def test_a_request_that_is_only_validated_creates_nothing(server: Server) -> None:
    browser, data = signed_in(server), form(server.good_file())
    reply = browser.post(f"{HERE}?validate_only=true", data=data)
    assert reply.status_code == 200
    assert "would accept this request" in check_page(reply.text).with_id("check").text
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []


def test_errors_come_at_their_fields_and_nothing_is_stored(server: Server) -> None:
    browser = signed_in(server)
    wrong = form(
        "file-none", suffix="kept", other="[1]",
        **{"recipe.lora.r": "0", "recipe.weight_decay": "much", "model": "tiny-lama"},
    )  # fmt: skip
    reply = browser.post(HERE, data=wrong)
    assert reply.status_code == 400
    document = check_page(reply.text)
    found = errors(document)
    assert set(found) == {
        "other", "recipe.lora.r", "recipe.weight_decay", "model", "training_file",
    }  # fmt: skip
    assert document.with_id("f-recipe.lora.r").attributes["aria-invalid"] == "true"
    assert "data-focus" in document.with_id("problems").attributes
    assert values(document)["suffix"] == "kept"
    empty = check_page(browser.post(HERE, data={"token": "x"}).text)
    assert {"model", "training_file"} <= set(errors(empty))
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []
    with server.database.read() as session:
        assert "POST /fine_tuning/jobs" not in list(session.scalars(select(AuditRow.action)))


def test_a_check_says_what_would_happen_and_creates_nothing(server: Server) -> None:
    browser, file_id = signed_in(server), server.good_file()
    headers = {"hx-request": "true", "sec-fetch-site": "same-origin"}
    part = browser.post(CHECK, data=form(file_id), headers=headers)
    assert part.status_code == 200
    document = Document(part.text)
    assert "The service would accept this request now." in document.with_id("ready").text
    assert "usable for supervised" in part.text
    for said in ("tunesmith jobs create", "client.fine_tuning.jobs.create(", "curl http"):
        assert said in part.text
    part = browser.post(CHECK, data={"recipe.lora.r": "x", "method": "supervised"}, headers=headers)
    fields = [item.attributes["data-field"] for item in Document(part.text).all("li")]
    assert fields == ["recipe.lora.r"]  # what is still empty is no error yet
    check_page(browser.post(CHECK, data=form(file_id)).text)
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []
    with server.database.read() as session:
        assert "POST /fine_tuning/jobs" not in list(session.scalars(select(AuditRow.action)))


def test_reinforcement_takes_a_grader(server: Server) -> None:
    file_id = server.upload()
    server.validate(file_id, usable_for=["reinforcement"], prompt_format="messages")
    browser = signed_in(server)
    data = form(file_id, method="reinforcement", grader="{")
    assert "grader" in errors(check_page(browser.post(HERE, data=data).text))
    data |= {"grader": "", "token": "t-2"}
    assert "grader" in errors(check_page(browser.post(HERE, data=data).text))
    job_id = started(browser, data | {"grader": json.dumps(GRADER)})
    assert server.job(job_id)["method"]["reinforcement"]["grader"]["name"] == "equal"
    again = values(check_page(browser.page(f"{HERE}?from={job_id}")))
    assert json.loads(again["grader"])["operation"] == "eq"
    assert again["method"] == "reinforcement"


def test_again_with_changes_fills_the_form_with_the_whole_request(server: Server) -> None:
    asked: dict[str, Any] = {
        "suffix": "a", "seed": 5, "metadata": {"k": "v"}, "hyperparameters": {"n_epochs": 2},
        "scheduling": {"priority": -5},
        "recipe": {"lora": {"r": 4}, "early_stopping": {}, "validation_split": 0.1},
    }  # fmt: skip
    file_id = server.good_file()
    job_id = server.create_job(file_id, **asked)
    browser = signed_in(server)
    page = check_page(browser.page(f"{HERE}?from={job_id}"))
    data = values(page) | {"training_file": file_id}
    assert data["recipe.lora.r"] == "4"
    job = server.job(started(browser, data))
    old = server.job(job_id)
    for name in ("suffix", "seed", "metadata", "recipe", "hyperparameters", "model"):
        assert job[name] == old[name], name
    assert browser.get(f"{HERE}?from=ftjob-none").status_code == 404


def test_a_fork_sends_only_what_differs(server: Server) -> None:
    job_id = server.create_job(server.good_file(), recipe={"lora": {"r": 4}, "max_steps": 100})
    server.worker.claim()
    server.add_resume_points(job_id, 10, 20)
    browser = signed_in(server)
    page = check_page(browser.page(f"{HERE}?fork_from={job_id}&step=15"))
    chosen = [item.text for item in page.all("option") if "selected" in item.attributes]
    assert "10" in chosen
    data = values(page) | {"step": "10", "recipe.learning_rate": "1e-5", "suffix": "slow"}
    action = f"{HERE}/fork/{job_id}"
    refused = browser.post(action, data=data | {"recipe.lora.r": "8"})
    assert refused.status_code == 400
    assert set(errors(check_page(refused.text))) == {"recipe.lora.r"}
    fork = server.job(started(browser, data, action))
    assert (fork["suffix"], fork["recipe"]["learning_rate"]) == ("slow", 1e-5)
    assert (fork["recipe"]["lora"]["r"], fork["recipe"]["max_steps"]) == (4, 100)
    with server.database.read() as session:
        actions = list(session.scalars(select(AuditRow.action)))
    assert actions.count("POST /fine_tuning/jobs/{job_id}/fork") == 1


def test_viewers_see_who_can_and_other_sites_are_refused(server: Server) -> None:
    viewer = signed_in(server, caller(server, "viewer"))
    document = check_page(viewer.page(HERE))
    assert (
        "A member, a lead or an admin of the project can start jobs" in document.all("main")[0].text
    )
    assert [item for item in document.all("form") if "new" in item.attributes["action"]] == []
    data = form(server.good_file())
    for path in (HERE, CHECK, f"{HERE}/fork/ftjob-a"):
        assert viewer.post(path, data=data).status_code == 403
    member = signed_in(server)
    cross = {"sec-fetch-site": "cross-site"}
    assert member.post(HERE, data=data, headers=cross).status_code == 403
    refused = member.post(HERE, data=data | {"other": '{"scheduling": {"priority": 9}}'})
    assert refused.status_code == 403
    assert "priority" in check_page(refused.text).with_id("problems").text


def test_hostile_texts_are_inert(server: Server) -> None:
    browser = signed_in(server)
    calm = len(check_page(browser.page(HERE)).all("script"))
    for at in range(0, len(TEXTS), 6):
        group = (*TEXTS[at : at + 6], *TEXTS[:6])
        server.upload(filename=group[0][:200].replace("\0", "") or "x")
        names = (
            "model",
            "suffix",
            "training_file",
            "recipe.lora.target_modules",
            "grader",
            "other",
        )
        data = dict(zip(names, (text[:20_000] for text in group), strict=False))
        reply = browser.post(HERE, data=data | {"method": "reinforcement"})
        assert reply.status_code == 400, group
        document = check_page(reply.text)
        assert len(document.all("script")) == calm
        assert not document.all("iframe", "base", "style", "object", "template", "img")


def test_a_form_without_model_and_file_is_refused_in_its_own_words(server: Server) -> None:
    browser = signed_in(server)
    reply = browser.post(HERE, data={"method": "supervised", "recipe.tuning": "lora"})
    assert reply.status_code == 400
    document = check_page(reply.text)
    told = {"model": "Choose a base model.", "training_file": "Choose a training file."}
    assert errors(document) == told
    [folded] = [item for item in document.all("details") if item.attributes.get("class") == "all"]
    assert "open" not in folded.attributes
    server.worker.hello()
    data = form(server.good_file(), **{"recipe.warmup_steps": "-1"})
    document = check_page(browser.post(HERE, data=data).text)
    [folded] = [item for item in document.all("details") if item.attributes.get("class") == "all"]
    assert "open" in folded.attributes


def test_a_file_is_chosen_by_the_address_and_its_first_rows_are_shown(server: Server) -> None:
    browser = signed_in(server)
    file_id = server.upload(b'{"text": "first"}\n')
    document = check_page(browser.page(f"{HERE}?training_file={file_id}"))
    chosen = [item for item in document.all("option") if "selected" in item.attributes]
    assert file_id in [item.attributes.get("value") for item in chosen]
    part = Document(browser.page(f"/portal/data/first?training_file={file_id}"))
    assert "first" in part.elements[0].text
    assert "Choose or drop" in browser.page("/portal/data/first")
    assert "Choose or drop" in browser.page("/portal/data/first?training_file=file-none")
    check = Document(browser.post(CHECK, data=form(file_id)).text)
    [poll] = [item for item in check.all("span") if "hx-post" in item.attributes]
    assert poll.attributes["hx-trigger"] == "every 1s"
    server.validate(file_id)
    check = Document(browser.post(CHECK, data=form(file_id)).text)
    assert not [item for item in check.all("span") if "hx-post" in item.attributes]
