"""The attacks load the service with what it allows, and not only with what it refuses."""

from __future__ import annotations

import json

import pytest
from benchmarks.service_parts.attacks import heaviest_job
from pydantic import ValidationError

from tunesmith_schema import JobCreate
from tunesmith_schema.graders import MAX_GRADER_BYTES
from tunesmith_schema.recipe import MAX_LIST_BYTES
from tunesmith_server.body_limits import JSON_BYTES


def test_the_heaviest_job_is_allowed_and_near_its_bounds() -> None:
    body = heaviest_job("file-1")
    job = JobCreate.model_validate(body)
    assert len(json.dumps(body)) < JSON_BYTES
    assert job.method is not None
    assert job.method.reinforcement is not None
    assert len(job.method.reinforcement.grader.model_dump_json()) > 0.95 * MAX_GRADER_BYTES
    for names in (body["recipe"]["add_tokens"], body["recipe"]["lora"]["target_modules"]):
        assert len(json.dumps(names, separators=(",", ":"))) > 0.95 * MAX_LIST_BYTES
    body["recipe"]["add_tokens"] += ["<one more token>"] * 200
    with pytest.raises(ValidationError, match="at most"):
        JobCreate.model_validate(body)
