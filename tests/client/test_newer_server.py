"""Answers of a newer server in an older client."""

from __future__ import annotations

import httpx

import tunesmith

from .fakes import job as job_json


def test_keys_that_a_newer_server_adds_anywhere_do_not_break_an_older_client() -> None:
    job = job_json()
    job["brand_new"] = 1
    job["recipe"] = {"tuning": "lora", "brand_new": {"deep": True}}
    job["hyperparameters"] = {"n_epochs": 2, "brand_new": "auto"}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=job))
    client = tunesmith.Client("http://host/v1", "key", transport=transport)
    read = client.fine_tuning.jobs.retrieve("ftjob-1")
    assert read.hyperparameters.n_epochs == 2
    assert read.recipe.tuning == "lora"
