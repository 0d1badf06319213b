"""Jobs and reports stored with a former name of a wire value stay usable."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from tunesmith_schema import Recipe
from tunesmith_schema.documents import DOCUMENT_VERSION
from tunesmith_server.models import ReportRow

from .actors import Server
from .test_run_reports import run_report

FORMER, CURRENT = "bf16_error_word", "bf16_split_master"
RECIPE = Recipe(tuning="full", precision="bf16_split_master").model_dump(mode="json")
STORED = RECIPE | {"precision": FORMER}


def stored_job(server: Server) -> str:
    job_id = server.create_job(server.good_file(), recipe={"tuning": "full", "precision": CURRENT})
    server.change_job(job_id, recipe=STORED, document_version=1)
    return job_id


def test_a_request_is_told_the_current_name(server: Server) -> None:
    recipe = {"tuning": "full", "precision": FORMER}
    reply = server.create_reply(server.good_file(), recipe=recipe)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "recipe.precision"
    assert CURRENT in error["message"]


def test_a_stored_job_is_shown_and_claimed_with_the_current_name(server: Server) -> None:
    job_id = stored_job(server)
    assert server.job(job_id)["recipe"]["precision"] == CURRENT
    server.worker.hello()
    assert server.worker.claim()["recipe"]["precision"] == CURRENT


def test_a_stored_job_is_retried_as_the_same_job(server: Server) -> None:
    job_id = stored_job(server)
    server.add_resume_points(job_id, 10)
    server.ask(job_id, "cancel")
    assert server.ask(job_id, "retry")["recipe"]["precision"] == CURRENT
    server.worker.hello()
    assert not server.worker.claim()["forked"], "a rename is not a change of the recipe"


def test_a_stored_job_is_forked(server: Server) -> None:
    job_id = stored_job(server)
    server.add_resume_points(job_id, 10)
    server.ask(job_id, "cancel")
    fork = server.ask(job_id, "fork", recipe={"learning_rate": 1e-5})
    assert fork["recipe"]["precision"] == CURRENT


@pytest.mark.parametrize(("version", "shown"), [(None, CURRENT), (1, CURRENT), (2, FORMER)])
def test_a_stored_report_is_shown_in_the_current_form_of_its_version(
    server: Server, version: int | None, shown: str
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    choice = {"name": "precision", "value": FORMER, "reason": "r"}
    server.worker.report(claim, run_report=run_report(1, choices=[choice]))
    with server.database.write.begin() as session:
        row = session.scalars(select(ReportRow)).one()
        assert row.content["document_version"] == DOCUMENT_VERSION
        content = {name: value for name, value in row.content.items() if name != "document_version"}
        row.content = content if version is None else content | {"document_version": version}
    report = server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}/report")
    assert report["choices"][0]["value"] == shown
    assert "document_version" not in report
