"""`tunesmith jobs share`, `links` and `unshare`, and `client.fine_tuning.jobs.links`."""

from __future__ import annotations

import json
import time

from .conftest import Tunesmith
from .fakes import page
from .local_server import LocalServer

LINKS = "/v1/fine_tuning/jobs/ftjob-1/links"
LINK = {
    "id": "link-1", "object": "fine_tuning.job.link", "job_id": "ftjob-1", "key_id": "key-1",
    "created_at": 1_700_000_000, "expires_at": 1_800_000_000,
}  # fmt: skip


def test_share_prints_the_address_once(tunesmith: Tunesmith, server: LocalServer) -> None:
    path = "/portal/shared/ftjob-1?link=secret"
    server.answers[f"POST {LINKS}"] = {**LINK, "path": path}
    done = tunesmith("jobs", "share", "ftjob-1", "--days", "7")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == server.url.removesuffix("/v1") + path
    assert json.loads(server.seen[0].body) == {"expires_in_seconds": 7 * 86_400}
    as_json = json.loads(tunesmith("jobs", "share", "ftjob-1", "--json").stdout)
    assert (as_json["id"], as_json["path"]) == ("link-1", path)
    assert tunesmith("jobs", "share", "ftjob-1", "--days", "366").exit_code == 2


def test_links_are_listed_and_revoked(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {LINKS}"] = page({**LINK, "created_at": int(time.time()) - 7200})
    listed = tunesmith("jobs", "links", "ftjob-1").stdout.split()
    assert listed[:4] == ["LINK", "KEY", "MADE", "EXPIRES"]
    assert listed[4:6] == ["link-1", "key-1"]
    gone = {"id": "link-1", "object": "fine_tuning.job.link", "deleted": True}
    server.answers[f"DELETE {LINKS}/link-1"] = gone
    assert tunesmith("jobs", "unshare", "ftjob-1", "link-1").stdout == "link-1 is revoked\n"
    assert json.loads(tunesmith("jobs", "unshare", "ftjob-1", "link-1", "--json").stdout) == gone
    missing = tunesmith("jobs", "unshare", "ftjob-1", "link-2")
    assert missing.exit_code == 1
