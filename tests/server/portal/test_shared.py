"""The page and the picture of a link: Open Graph data, nothing else of the job, rate limit; and the
page on which links are made."""

from __future__ import annotations

import struct
import zlib
from typing import Any
from urllib.parse import urlsplit

import pytest

from tunesmith_server.portal import text, view
from tunesmith_server.portal.shared import picture

from ...browser.seeding import HOSTILE
from ..actors import Server
from ..callers import metrics
from ..teams import caller
from .browser import Browser, signed_in
from .page_checks import Document, check_page


def shared(server: Server, **fields: Any) -> tuple[str, str]:
    """Return a job in training, and the path of a link to it."""
    job_id = server.create_job(server.good_file(b'{"prompt": "p", "completion": "c"}\n'), **fields)
    claim = server.worker.claim()
    losses = [2.5, 2.0, 1.25, 1.125, 0.75, 0.5]
    points = [metrics(step, step, train_loss=loss) for step, loss in enumerate(losses, 1)]
    server.worker.report(claim, events=points)
    return job_id, server.user.post(f"/v1/fine_tuning/jobs/{job_id}/links").json()["path"]


def graph(document: Document) -> dict[str, str]:
    """Return the Open Graph data of a page."""
    named = [item.attributes for item in document.all("meta")]
    return {item["property"]: item["content"] for item in named if "property" in item}


def pixels(png: bytes) -> list[bytes]:
    """Return the rows of a picture, each as shades. Checks every chunk."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert int.from_bytes(png[at + 8 + size : at + 12 + size]) == zlib.crc32(kind + data)
        chunks[kind] = data
        at += 12 + size
    assert [*chunks] == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (width, height, rest) == (picture.WIDTH, picture.HEIGHT, [8, 3, 0, 0, 0])
    assert len(chunks[b"PLTE"]) == 3 * 256
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (width + 1)
    rows = [raw[start : start + width + 1] for start in range(0, len(raw), width + 1)]
    assert {row[0] for row in rows} == {0}
    return [row[1:] for row in rows]


def test_the_page_has_open_graph_data_and_nothing_else_of_the_job(server: Server) -> None:
    labels = {"team": "private-label"}
    job_id, path = shared(server, suffix="private-suffix", metadata=labels)
    named = {"name": "Support, slower", "notes": "private-notes"}
    server.user.send("PATCH", f"/v1/fine_tuning/jobs/{job_id}", json=named)
    reply = Browser(server).get(path)
    document = check_page(reply.text)
    data = graph(document)
    assert data["og:title"] == "Support, slower"
    assert data["og:description"] == "Running, last loss 0.5"
    address = urlsplit(data["og:image"])
    assert f"{address.scheme}://{address.netloc}" == "http://testserver"
    drawn = Browser(server).get(f"{address.path}?{address.query}")
    assert (drawn.status_code, drawn.headers["content-type"]) == (200, "image/png")
    size = (data["og:image:width"], data["og:image:height"])
    assert size == (str(picture.WIDTH), str(picture.HEIGHT))
    for answer in (reply, drawn):
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-robots-tag"] == "noindex, nofollow"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in answer.headers
    job = server.job(job_id)
    for secret in ("private", job["training_file"], job["model"], job["owner_id"], "jobs/new"):
        assert secret not in reply.text, secret
    assert not document.all("nav", "form")


def test_the_picture_follows_the_curve(server: Server) -> None:
    rows = pixels(picture.curve((3.0, 2.0, 1.0, 0.0)))

    def line(column: int) -> float:
        """Return the middle of the line in a column."""
        dark = [number for number, row in enumerate(rows) if row[column] > 128]
        return sum(dark) / len(dark)

    middles = [line(column) for column in (60, 420, 780, 1140)]
    assert all(abs(got - want) < 2 for got, want in zip(middles, (60, 230, 400, 570), strict=True))
    assert not any(row[10] for row in rows), "the margin is empty"
    nan, inf = float("nan"), float("inf")
    odd: tuple[tuple[float, ...], ...] = ((), (1.0,), (nan,), (1.0, 1.0), (1, nan, 2, inf, 3))
    for values in (*odd, (1e308, -1e308, 1e308), (5e-324, 0.0), tuple(map(float, range(64)))):
        drawn = pixels(picture.curve(values))
        assert any(any(row) for row in drawn) == any(value < inf for value in values), values


def test_a_job_without_metrics_has_no_picture(server: Server) -> None:
    job_id = server.create_job(server.good_file(), suffix="next")
    path = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/links").json()["path"]
    data = graph(check_page(Browser(server).page(path)))
    assert (data["og:title"], data["og:description"]) == ("next", "Queued")
    assert "og:image" not in data
    assert Browser(server).get(path.replace("?", "/curve.png?")).status_code == 404


def test_hostile_names_are_inert_in_open_graph_data(server: Server) -> None:
    job_id, path = shared(server)
    for hostile in HOSTILE.values():
        name = hostile.replace("\0", "")[:200].encode("utf-8", "replace").decode() or "x"
        server.change_job(job_id, name=name)
        document = check_page(Browser(server).page(path))
        assert graph(document)["og:title"] == text.visible(name), name
        assert len(document.all("img")) == 1
        assert document.all("h1")[0].text == text.visible(name)
        server.app.state.tunesmith.rate_limits._buckets.clear()


def test_a_member_of_another_project_sees_the_shared_job(server: Server) -> None:
    _, path = shared(server)
    admin = caller(server, "admin")
    other = admin.post("/v1/organization/projects", json={"name": "Other"}).json()["id"]
    assert signed_in(server, caller(server, "viewer", other)).get(path).status_code == 200


def test_an_address_may_open_links_at_a_limited_rate(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = shared(server)
    browser, limits = Browser(server), server.app.state.tunesmith.rate_limits
    monkeypatch.setattr(limits, "_now", lambda: 1000.0)
    bad = path.replace("ftjob-", "ftjob-0")
    for _ in range(299):
        limits.check_address("192.0.2.1", 300)
    assert browser.get(bad).status_code == 404
    limited = browser.get(path)
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "1")
    assert browser.get(path.replace("?", "/curve.png?")).status_code == 429
    assert browser.get("/portal/sign-in").status_code == 200
    monkeypatch.setattr(limits, "_now", lambda: 1000.2)
    assert browser.get(path).status_code == 200


def test_a_member_makes_and_revokes_a_link_in_the_portal(server: Server) -> None:
    job_id, _ = shared(server, suffix="mine")
    browser, here = signed_in(server), f"/portal/jobs/{job_id}/links"
    assert here in [item.attributes["href"] for item in check_page(
        browser.page(f"/portal/jobs/{job_id}")
    ).all("a") if item.text == "Share"]  # fmt: skip
    made = browser.post(here, data={"days": "7"})
    document = check_page(made.text)
    link = document.with_id("made").text
    assert link.startswith("http://testserver/portal/shared/")
    [button] = [item for item in document.all("button") if "data-copy" in item.attributes]
    assert button.attributes["data-copy"] == link
    assert Browser(server).get(link).status_code == 200
    for days in ("0", "366", "x", "", "²", "99999"):
        refused = browser.post(here, data={"days": days})
        assert refused.status_code == 400, days
        assert "from 1 to 365" in check_page(refused.text).with_id("days-problem").text
    newest, _ = server.user.json(f"/v1/fine_tuning/jobs/{job_id}/links")["data"]
    assert view.moment(newest["expires_at"]) in browser.page(here)
    assert link.partition("=")[2] not in browser.page(here), "a link is shown once"
    assert browser.post(f"{here}/{newest['id']}/revoke").headers["location"] == here
    assert Browser(server).get(link).status_code == 404


def test_a_viewer_sees_links_and_makes_none(server: Server) -> None:
    job_id, path = shared(server)
    browser = signed_in(server, caller(server, "viewer"))
    page = check_page(browser.page(f"/portal/jobs/{job_id}/links"))
    assert "may only read" in page.all("main")[0].text
    assert not [item for item in page.all("form") if "/links" in item.attributes["action"]]
    assert path.partition("=")[2] not in browser.page(f"/portal/jobs/{job_id}/links")
