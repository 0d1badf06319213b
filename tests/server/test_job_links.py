"""Links that show a job without a sign-in: what they show, to whom, and when they end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import func, select, update

from tunesmith_server.identity import job_links
from tunesmith_server.models import JobLinkRow

from .actors import Server
from .callers import Caller, metrics
from .teams import caller, two_teams

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def job_id(server: Server) -> str:
    job_id = server.create_job(server.good_file(), suffix="support", metadata={"team": "secret-1"})
    claim = server.worker.claim()
    points = [metrics(step, step, train_loss=2.0 / step) for step in range(1, 9)]
    server.worker.report(claim, events=points)
    return job_id


def made(sender: Caller, job_id: str, **body: Any) -> dict[str, Any]:
    reply = sender.post(f"{JOBS}/{job_id}/links", json=body)
    assert reply.status_code == 200, reply.text
    link: dict[str, Any] = reply.json()
    return link


def works(server: Server, path: str) -> bool:
    """Return True if a link shows its job; a link that does not work must not show the picture."""
    page, picture = (server.anonymous.get(at) for at in (path, path.replace("?", "/curve.png?")))
    assert page.status_code == picture.status_code, (page.status_code, picture.status_code)
    assert page.status_code in (200, 404), page.text
    return page.status_code == 200


def test_a_link_shows_the_job_until_it_is_revoked(server: Server, job_id: str) -> None:
    link = made(server.user, job_id)
    assert link["expires_at"] - link["created_at"] == 30 * 86_400
    assert works(server, link["path"])
    [listed] = server.user.json(f"{JOBS}/{job_id}/links")["data"]
    assert listed == {name: value for name, value in link.items() if name != "path"}
    revoked = server.user.delete(f"{JOBS}/{job_id}/links/{link['id']}")
    assert revoked.json() == {"id": link["id"], "object": "fine_tuning.job.link", "deleted": True}
    assert not works(server, link["path"])
    assert server.user.json(f"{JOBS}/{job_id}/links")["data"] == []
    assert server.user.delete(f"{JOBS}/{job_id}/links/{link['id']}").status_code == 404


def test_wrong_links_answer_alike(server: Server, job_id: str) -> None:
    """A changed secret, another job's id, an unknown job and an expired link differ in nothing."""
    link, other = made(server.user, job_id), server.create_job(server.good_file())
    path = link["path"]
    assert server.user.delete(f"{JOBS}/{other}/links/{link['id']}").status_code == 404
    address, _, secret = path.partition("?link=")
    expired = made(server.user, job_id)
    with server.database.write.begin() as session:
        past = update(JobLinkRow).where(JobLinkRow.id == expired["id"])
        session.execute(past.values(expires_at=time.time() - 1))
    last = "A" if secret[-1] != "A" else "B"
    wrong = [
        *(f"{address}?link={secret[:-1]}{last}", f"{address}?link={secret}x", address),
        *(f"{address}?link=", f"{address}?link=%00", f"{address}?link={'x' * 5000}"),
        *(path.replace(job_id, other), path.replace(job_id, "ftjob-0"), expired["path"]),
        path.replace(job_id, "%00"),
    ]
    texts = set()
    for bad in wrong:
        assert not works(server, bad), bad
        reply = server.anonymous.get(bad, headers={"x-request-id": "same"})
        tried = reply.text.partition('class="button" href="')[2].partition('"')[0]
        assert tried, "the page offers to try again"
        texts.add(reply.text.replace(tried, "PATH"))
    assert len(texts) == 1, "only the path differs"
    assert works(server, path)


def test_a_deleted_job_is_not_shown(server: Server, job_id: str) -> None:
    path = made(server.user, job_id)["path"]
    server.user.post(f"{JOBS}/{job_id}/cancel")
    server.change_job(job_id, state="cancelled", finished_at=time.time())
    assert works(server, path)
    assert server.user.delete(f"{JOBS}/{job_id}").status_code == 200
    assert not works(server, path)
    with server.database.read() as session:
        assert session.scalar(select(func.count()).select_from(JobLinkRow)) == 0


def test_a_link_ends_with_the_key_that_made_it(server: Server, job_id: str) -> None:
    admin, member = caller(server, "admin"), caller(server, "member")
    link = made(member, job_id)
    assert works(server, link["path"])
    keys = "/v1/organization/projects/proj-default/api_keys"
    assert admin.delete(f"{keys}/{link['key_id']}").status_code == 200
    assert not works(server, link["path"])


def test_a_link_of_an_archived_project_ends(server: Server) -> None:
    admin, _, other = two_teams(server)
    link = made(other.server.user, other.job_id)
    by_admin = admin.post(
        f"{JOBS}/{other.job_id}/links", headers={"openai-project": other.project_id}
    ).json()
    assert works(server, link["path"])
    assert works(server, by_admin["path"])
    archived = admin.post(f"/v1/organization/projects/{other.project_id}/archive")
    assert archived.status_code == 200
    assert not works(server, link["path"])
    assert not works(server, by_admin["path"])


def test_a_viewer_lists_links_and_makes_none(server: Server, job_id: str) -> None:
    link, viewer = made(server.user, job_id), caller(server, "viewer")
    assert viewer.post(f"{JOBS}/{job_id}/links").status_code == 403
    assert viewer.delete(f"{JOBS}/{job_id}/links/{link['id']}").status_code == 403
    listed = viewer.get(f"{JOBS}/{job_id}/links")
    assert link["id"] in listed.text
    assert link["path"].partition("=")[2] not in listed.text


def test_bounds(server: Server, job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (59, 366 * 86_400, -1, "soon"):
        refused = server.user.post(f"{JOBS}/{job_id}/links", json={"expires_in_seconds": seconds})
        assert refused.status_code == 400, seconds
    monkeypatch.setattr(job_links, "MAX_LINKS", 2)
    first, _ = made(server.user, job_id, expires_in_seconds=60), made(server.user, job_id)
    full = server.user.post(f"{JOBS}/{job_id}/links")
    assert (full.status_code, "2 links, the maximum number" in full.text) == (400, True)
    with server.database.write.begin() as session:
        past = update(JobLinkRow).where(JobLinkRow.id == first["id"])
        session.execute(past.values(expires_at=time.time() - 1))
    made(server.user, job_id)
    server.janitor().round()
    with server.database.read() as session:
        assert session.scalar(select(func.count()).select_from(JobLinkRow)) == 2


def test_the_audit_log_names_who_shared_what(server: Server, job_id: str) -> None:
    admin, link = caller(server, "admin"), made(server.user, job_id)
    server.user.delete(f"{JOBS}/{job_id}/links/{link['id']}")
    logs = admin.get("/v1/organization/audit_logs", params={"limit": 2})
    deleted, created = logs.json()["data"]
    assert created["action"] == "POST /fine_tuning/jobs/{job_id}/links"
    assert created["target"] == {"job_id": job_id}
    assert created["after"][0]["id"] == link["id"]
    assert deleted["action"] == "DELETE /fine_tuning/jobs/{job_id}/links/{link_id}"
    assert deleted["before"][0]["id"] == link["id"]
    assert "sha256" not in created["after"][0]
