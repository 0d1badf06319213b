"""List of jobs: owner and label, order, picks, columns, CSV."""

from __future__ import annotations

import csv
import io

from sqlalchemy import update

from tunesmith_server.models import JobRow

from ..actors import Server
from .browser import signed_in
from .page_checks import Document, check_links, check_page


def shown(document: Document) -> list[str]:
    """Return the ids of the listed jobs, in order."""
    rows = [item.attributes.get("data-job") for item in document.all("tr")]
    return [row for row in rows if row]


def test_owner_and_label_select(server: Server) -> None:
    mine = server.create_job(server.good_file(), suffix="mine", metadata={"team": "search"})
    other = server.new_user("other")
    file_id = server.good_file()
    theirs = server.create_job(file_id, suffix="theirs", metadata={"team": "a=b"})
    with server.user_session() as session, session.begin():
        owner = other.get("/v1/me").json()["key_id"]
        session.execute(update(JobRow).where(JobRow.id == theirs).values(owner=owner))
    browser = signed_in(server)
    for query, expected in (
        ("owner=other", [theirs]),
        ("label=team%3Dsearch", [mine]),
        ("label=team%3Da%3Db", [theirs]),
        ("label=team", [theirs, mine]),
        ("owner=other&label=team%3Dsearch", []),
        ("order=asc", [mine, theirs]),
    ):
        document = check_page(browser.page(f"/portal/jobs?{query}"))
        assert shown(document) == expected, query
    call = check_page(browser.page("/portal/jobs?label=team%3Dsearch&owner=ann"))
    code = [item.text for item in call.all("code")]
    assert "metadata%5Bteam%5D=search" in code[0]
    assert "metadata={'team': 'search'}" in code[1]
    assert "--metadata team='search'" in code[2]


def test_picks_stay_in_the_address_and_in_the_form(server: Server) -> None:
    ids = [server.create_job(server.good_file(), suffix=name) for name in ("one", "two", "three")]
    browser = signed_in(server)
    picked = f"pick={ids[0]},{ids[1]},ftjob-gone"
    document = check_page(browser.page(f"/portal/jobs?q=one&{picked}"))
    boxes = [item.attributes for item in document.all("input") if item.attributes["name"] == "jobs"]
    assert [(box["value"], "checked" in box) for box in boxes] == [(ids[1], True), (ids[0], True)]
    kept = next(item for item in document.all("input") if item.attributes["name"] == "pick")
    assert kept.attributes["value"] == f"{ids[0]},{ids[1]},ftjob-gone"
    check_links(browser, document, ("/portal/jobs/new",))


def test_columns_are_hidden_until_they_are_chosen_again(server: Server) -> None:
    server.create_job(server.good_file(), suffix="one")
    browser = signed_in(server)
    wanted = {"column": ["curve", "method"], "to": "/portal/jobs?state=waiting"}
    reply = browser.post("/portal/columns", data=wanted)
    assert (reply.status_code, reply.headers["location"]) == (303, "/portal/jobs?state=waiting")
    document = check_page(browser.page("/portal/jobs"))
    assert document.all("table")[0].attributes["class"] == "jobs no-model no-owner no-took no-when"
    boxes = {item.attributes["value"]: "checked" in item.attributes
             for item in document.all("input") if item.attributes["name"] == "column"}  # fmt: skip
    assert [name for name, is_shown in boxes.items() if is_shown] == ["curve", "method"]
    away = browser.post("/portal/columns", data={"to": "https://example.invalid"})
    assert away.headers["location"] == "/portal"


def test_the_list_is_saved_as_a_table(server: Server) -> None:
    first = server.create_job(server.good_file(), suffix="first")
    second = server.create_job(server.good_file(), suffix="second")
    with server.user_session() as session, session.begin():
        named = {"name": "=HYPERLINK(1)"}
        session.execute(update(JobRow).where(JobRow.id == first).values(named))
    reply = signed_in(server).get("/portal/jobs.csv?state=waiting")
    assert "attachment" in reply.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(reply.text)))
    assert [row["id"] for row in rows] == [second, first]
    assert (rows[0]["suffix"], rows[0]["state"], rows[0]["method"]) == ("second", "queued", "LoRA")
    assert rows[1]["name"] == "'=HYPERLINK(1)"
