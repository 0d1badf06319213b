"""Paging, filters and ids in paths."""

from __future__ import annotations

import httpx

from .fakes import Script, client_of, event, job, page


def test_iterating_goes_through_all_pages() -> None:
    script = Script(
        httpx.Response(200, json=page(job(id="ftjob-3"), job(id="ftjob-2"), has_more=True)),
        httpx.Response(200, json=page(job(id="ftjob-1"))),
    )
    first = client_of(script).fine_tuning.jobs.list(limit=2, order="desc")
    assert [item.id for item in first.data] == ["ftjob-3", "ftjob-2"]
    assert first.has_more
    assert [item.id for item in first] == ["ftjob-3", "ftjob-2", "ftjob-1"]
    assert dict(script.requests[1].url.params) == {
        "limit": "2",
        "order": "desc",
        "after": "ftjob-2",
    }


def test_a_list_begins_after_a_given_id() -> None:
    script = Script(httpx.Response(200, json=page()))
    assert list(client_of(script).files.list(after="file-9", purpose="fine-tune")) == []
    assert dict(script.requests[0].url.params) == {"after": "file-9", "purpose": "fine-tune"}


def test_an_empty_page_is_the_last() -> None:
    script = Script(httpx.Response(200, json=page(has_more=True)))
    assert list(client_of(script).fine_tuning.jobs.list()) == []
    assert len(script.requests) == 1


def test_jobs_are_filtered_by_metadata() -> None:
    script = Script(httpx.Response(200, json=page()))
    client_of(script).fine_tuning.jobs.list(metadata={"team": "x"})
    assert script.requests[0].url.params["metadata[team]"] == "x"


def test_listed_jobs_can_be_refreshed() -> None:
    script = Script(
        httpx.Response(200, json=page(job())), httpx.Response(200, json=job("running", step=4))
    )
    (one,) = client_of(script).fine_tuning.jobs.list()
    assert one.refresh() is one
    assert (one.state, one.step) == ("running", 4)


def test_metrics_are_complete_and_in_order() -> None:
    points = [{"id": str(n), "step": n, "values": {"train_loss": 1.0 / n}} for n in (1, 2, 3)]
    script = Script(
        httpx.Response(200, json=page(*points[:2], has_more=True)),
        httpx.Response(200, json=page(points[2])),
    )
    assert [point.step for point in client_of(script).fine_tuning.jobs.metrics("ftjob-1")] == [
        1,
        2,
        3,
    ]
    assert script.requests[1].url.params["after"] == "2"
    assert script.requests[1].url.params["order"] == "asc"


def test_events_and_checkpoints_are_lists_of_the_job() -> None:
    checkpoint = {
        "id": "ftckpt-1",
        "created_at": 1,
        "fine_tuning_job_id": "ftjob-1",
        "fine_tuned_model_checkpoint": "ft:tiny:x",
        "step_number": 5,
        "metrics": {},
    }
    script = Script(
        httpx.Response(200, json=page(event(1))), httpx.Response(200, json=page(checkpoint))
    )
    jobs = client_of(script).fine_tuning.jobs
    assert [item.seq for item in jobs.list_events("ftjob-1")] == [1]
    assert [item.step_number for item in jobs.checkpoints.list("ftjob-1")] == [5]
    assert [request.url.path for request in script.requests] == [
        "/v1/fine_tuning/jobs/ftjob-1/events",
        "/v1/fine_tuning/jobs/ftjob-1/checkpoints",
    ]


def test_an_id_is_quoted_in_the_path() -> None:
    script = Script(httpx.Response(200, json={"id": "a/b", "deleted": True}))
    client_of(script).models.delete("org/model:x")
    assert script.requests[0].url.raw_path == b"/v1/models/org%2Fmodel%3Ax"
