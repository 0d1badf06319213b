"""Warnings before training about models that a vLLM server for chat will not load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tunesmith_server.core.settings import Settings

from .actors import FakeWakeUps, Server, serving
from .portal.browser import signed_in
from .portal.page_checks import check_links, check_page
from .portal.test_new_job import CHECK, form


@pytest.fixture
def limited(settings: Settings, wake_ups: FakeWakeUps) -> Iterator[Server]:
    with serving(settings.model_copy(update={"inference_max_lora_rank": 16}), wake_ups) as running:
        yield running


@pytest.mark.parametrize(
    ("recipe", "param"),
    [
        ({"lora": {"r": 16}}, None),
        ({"lora": {"r": 17}}, "recipe.lora.r"),
        ({}, "recipe.lora.r"),  # the default rank is 32
        ({"lora": {"r": 8}, "add_tokens": ["<x>"]}, "recipe.add_tokens"),
        ({"lora": {"r": 8, "bias": "all"}}, "recipe.lora.bias"),
        (
            {"lora": {"r": 8, "target_modules": ["q_proj", "lm_head"]}},
            "recipe.lora.target_modules",
        ),
        ({"tuning": "full"}, "recipe.tuning"),
    ],
)
def test_a_job_whose_model_chat_cannot_load_has_a_warning(
    limited: Server, recipe: dict[str, Any], param: str | None
) -> None:
    body = {"model": "tiny-llama", "training_file": limited.good_file(), "recipe": recipe}
    path = "/v1/fine_tuning/jobs"
    checked = limited.user.post(path, params={"validate_only": "true"}, json=body).json()
    assert checked["valid"], checked
    assert [warning["param"] for warning in checked["warnings"]] == [param] * (param is not None)
    job = limited.user.post(path, json=body).json()
    events = limited.user.json(f"{path}/{job['id']}/events")["data"]
    warned = [e for e in events if (e.get("data") or {}).get("reason") == "chat_cannot_load"]
    assert {event["level"] for event in warned} <= {"warn"}
    assert [event["data"]["param"] for event in warned] == [param] * (param is not None)


def test_the_form_of_a_new_job_shows_the_warning(limited: Server) -> None:
    browser = signed_in(limited)
    data = form(limited.good_file())
    document = check_page(browser.post(CHECK, data=data).text)
    [warning] = [li for li in document.all("li") if li.attributes.get("class") == "is-hold"]
    assert "data-field" not in warning.attributes, "the field is not marked as wrong"
    assert document.with_id("f-recipe.lora.r"), "the warning links to the field"
    assert "loads adapters up to rank 16" in warning.text
    assert "but not chat with it" in warning.text
    assert "would accept this request now" in document.with_id("ready").text
    check_links(browser, document)
    document = check_page(browser.post(CHECK, data=data | {"recipe.lora.r": "16"}).text)
    assert "warning" not in document.with_id("check").text


def test_our_process_answers_where_serve_starts_vllm(
    settings: Settings, wake_ups: FakeWakeUps
) -> None:
    both = {"inference_max_lora_rank": 16, "inference_vllm_model": "tiny-llama"}
    with serving(settings.model_copy(update=both), wake_ups) as server:
        body = {"model": "tiny-llama", "training_file": server.good_file()}
        path = "/v1/fine_tuning/jobs?validate_only=true"
        assert server.user.post(path, json=body).json()["warnings"] == []


def test_without_a_limit_there_is_no_warning(server: Server) -> None:
    body = {
        "model": "tiny-llama",
        "training_file": server.good_file(),
        "recipe": {"lora": {"r": 512}},
    }
    checked = server.user.post(
        "/v1/fine_tuning/jobs", params={"validate_only": "true"}, json=body
    ).json()
    assert (checked["valid"], checked["warnings"]) == (True, [])
