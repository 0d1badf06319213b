"""Models: the list in each state, its filters, and a model with its lineage."""

from __future__ import annotations

import json
from urllib.parse import quote

from sqlalchemy import select

from tunesmith_server.models import AdapterRow, AuditRow
from tunesmith_server.portal.text import HIDDEN

from ..actors import Server
from ..callers import VERDICT, event, metrics
from ..teams import caller, new_project
from ..test_models import tuned
from .browser import signed_in
from .hostile import TEXTS
from .page_checks import check_links, check_page

TO_COME = ("/portal/jobs/new",)


def listed(page: str) -> list[str]:
    """Return the names of the tuned models of the list."""
    return [
        item.text
        for item in check_page(page).all("a")
        if item.attributes["href"].startswith("/portal/models/ft")
    ]


def test_models_are_grouped_and_filtered_by_the_address(server: Server) -> None:
    browser = signed_in(server)
    server.worker.hello()
    page = browser.page("/portal/models")
    assert "No tuned models yet" in page
    check_links(browser, check_page(page))
    lora, full = tuned(server, suffix="one"), tuned(server, "full", suffix="two")
    further = tuned(server, "full", model=full)
    page = browser.page("/portal/models")
    assert listed(page) == [further, full, lora]
    bases = [item.text for item in check_page(page).all("h2")]
    assert bases[:3] == [f"Tuned from {full}", "Tuned from tiny-llama", "Base models"]
    check_links(browser, check_page(page))
    assert listed(browser.page("/portal/models?base=tiny-llama")) == [full, lora]
    assert listed(browser.page("/portal/models?kind=lora")) == [lora]
    assert listed(browser.page("/portal/models?q=TWO")) == [full]
    table = browser.get("/portal/models.csv?base=tiny-llama").text.splitlines()
    assert [line.partition(",")[0] for line in table] == ["id", full, lora]
    assert "No model matches" in browser.page("/portal/models?q=none")
    assert browser.get("/portal/models?after=nobody").status_code == 400


def with_checkpoints(server: Server, *steps: int) -> str:
    """Train a model that has a verdict, and checkpoints at these steps. Return its name."""
    job_id = server.create_job(server.good_file(), suffix="support")
    claim = server.worker.claim()
    numbers = range(1, 9)
    server.worker.report(claim, events=[metrics(n, n, train_loss=3 / n) for n in numbers])
    for number, step in enumerate(steps, start=9):
        files = server.worker.store(claim, {"a.safetensors": b"step %d" % step})
        saved = event(number, kind="checkpoint", data={"step": step}, files=files)
        server.worker.report(claim, events=[saved])
    server.worker.succeed(claim, verification=json.dumps(VERDICT).encode())
    return str(server.job(job_id)["fine_tuned_model"])


def test_a_model_shows_its_lineage_files_and_proof(server: Server) -> None:
    name = with_checkpoints(server, 2, 6)
    model = server.user.json(f"/v1/models/{name}")
    browser = signed_in(server)
    for path in (name, f"{name}:ckpt-step-2", "tiny-llama"):
        check_links(browser, check_page(browser.page(f"/portal/models/{path}")), TO_COME)
    document = check_page(browser.page(f"/portal/models/{name}"))
    text = document.all("main")[0].text
    assert all(part in text for part in ("Data", "tiny-llama", "Read back", "support", "Step 6"))
    adapter = server.user.json(f"/v1/adapters/{model['adapter_id']}")
    copied = {item.attributes.get("data-copy") for item in document.all("button")}
    assert {file["sha256"] for file in adapter["files"]} <= copied
    marks = [item for item in document.all("line") if "mark" in item.attributes.get("class", "")]
    assert [float(item.attributes["x1"]) for item in marks] == [85.7, 428.6]
    part = browser.page(f"/portal/models/files/{adapter['id']}/verdict")
    assert all(figure in part for figure in ("1.0e-06", "0.001", "torch 2.9"))
    assert "did not load these files again" in browser.page(f"/portal/models/{name}:ckpt-step-2")
    assert browser.get("/portal/models/nobody").status_code == 404


def test_downloads_are_streamed_and_in_the_audit_log(server: Server) -> None:
    name = with_checkpoints(server)
    model = server.user.json(f"/v1/models/{name}")
    browser = signed_in(server)
    path = f"/portal/models/files/{model['adapter_id']}/adapter_config.json"
    whole = browser.get(f"/portal/jobs/{model['job_id']}/weights/{model['adapter_id']}")
    assert whole.headers["content-type"] == "application/x-tar"
    one = browser.get(path)
    assert one.headers["content-disposition"] == 'attachment; filename="adapter_config.json"'
    assert one.content in whole.content
    with server.database.read() as session:
        actions = set(session.scalars(select(AuditRow.action)))
    route = "GET /adapters/{adapter_id}/content"
    assert {route, f"{route}/{{name}}"} <= actions


def test_recipe_and_log_are_on_the_page_of_the_job(server: Server) -> None:
    name = with_checkpoints(server)
    path = f"/portal/jobs/{server.user.json(f'/v1/models/{name}')['job_id']}"
    browser = signed_in(server)
    check_links(browser, check_page(browser.page(path)), TO_COME)
    made = browser.get(f"{path}/made/log.txt")
    assert made.headers["content-disposition"].endswith('-log.txt"')
    assert "succeeded" in made.text
    assert browser.get(f"{path}/made/other").status_code == 404


def test_a_checkpoint_is_deleted_with_one_confirmation(server: Server) -> None:
    name = with_checkpoints(server, 2, 6)
    page = f"/portal/models/{name}:ckpt-step-2"
    viewer = signed_in(server, caller(server, "viewer"))
    assert "delete-model" not in viewer.page(page)
    assert viewer.post(f"{page}/delete").status_code == 403
    browser = signed_in(server)
    question = check_page(browser.page(page)).with_id("delete-model").text
    assert "Delete the checkpoint of step 2 and its files?" in question
    assert browser.post(f"{page}/delete").headers["location"] == "/portal/models"
    assert browser.get(page).status_code == 404
    assert "Step 6" in browser.page(f"/portal/models/{name}")


def test_a_lead_shares_a_model_and_a_member_cannot(server: Server) -> None:
    name = with_checkpoints(server)
    path = f"/portal/models/{name}"
    other = new_project(caller(server, "admin"))
    assert "A lead of the project or an admin" in signed_in(server).page(path)
    assert signed_in(server).post(f"{path}/share", data={"project": other}).status_code == 403
    browser = signed_in(server, caller(server, "lead"))
    wrong = browser.post(f"{path}/share", data={"project": "proj-none"})
    assert (wrong.status_code, "no project" in wrong.text) == (400, True)
    with server.database.read() as session:
        assert not [one for one in session.scalars(select(AuditRow.action)) if "permis" in one]
    check_page(wrong.text)
    assert browser.post(f"{path}/share", data={"project": other}).status_code == 303
    document = check_page(browser.page(path))
    assert other in document.with_id("sharing").text
    reader = signed_in(server, caller(server, "member", other))
    shared = check_page(reader.page(path))
    assert "of another project, which shares the model" in shared.all("main")[0].text
    assert "delete-model" not in reader.page(path)
    [action] = [
        item.attributes["action"]
        for item in document.all("form")
        if item.attributes["action"].endswith("/withdraw")
    ]
    assert browser.post(action).status_code == 303
    assert reader.get(path).status_code == 404


def test_models_are_linked_from_home_the_job_and_the_palette(server: Server) -> None:
    name = with_checkpoints(server, 2)
    job_id = server.user.json(f"/v1/models/{name}")["job_id"]
    browser = signed_in(server)
    address = f"/portal/models/{quote(name)}"
    for path in ("/portal", f"/portal/jobs/{job_id}", "/portal/find?q=suppo"):
        page = browser.get(path, headers={"hx-request": "true"}).text
        assert f'href="{address}"' in page, path
    assert browser.post(f"{address}/delete").status_code == 303
    for path in ("/portal", f"/portal/jobs/{job_id}", "/portal/find?q=suppo"):
        page = browser.get(path, headers={"hx-request": "true"}).text
        assert f'href="{address}"' not in page, path


def test_hostile_names_of_models_are_inert(server: Server) -> None:
    """Names of bases, of files and of projects come from workers and users."""
    name = with_checkpoints(server)
    texts = ["".join(item.replace("\0", "").splitlines()) for item in TEXTS]
    with server.user_session() as session, session.begin():
        row = session.scalars(select(AdapterRow)).one()
        values = {key: getattr(row, key) for key, _ in row.__mapper__.columns.items()}
        for number, hostile in enumerate(texts):
            copied = {"id": f"adp-{number:024x}", "model": f"{number}{hostile}"[:255]}
            session.add(AdapterRow(**values | copied | {"base_model": hostile[:512]}))
    browser = signed_in(server, caller(server, "lead"))
    paths = [f"/portal/models/{quote(f'{n}{text}'[:255], safe='')}" for n, text in enumerate(texts)]
    for path in ("/portal/models", f"/portal/models?base={quote(texts[0])}", *paths):
        document = check_page(browser.page(path))
        assert not document.all("iframe", "img", "base", "style", "object", "template")
        assert not HIDDEN.search("".join(item.text for item in document.all("main")))
    for hostile in TEXTS:
        query = {"q": hostile[:2000], "base": hostile[:2000], "kind": hostile[:9]}
        check_page(browser.get("/portal/models", params=query).text)
        wrong = browser.post(f"/portal/models/{name}/share", data={"project": hostile[:2000]})
        assert wrong.status_code == 400, hostile[:80]
        check_page(wrong.text)
