"""`client.models` and `client.adapters`, and their commands."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tunesmith._cli import control

from .conftest import Tunesmith
from .fakes import Script, client_of, page
from .local_server import LocalServer

NAME = "ft:tiny:default:x:1"
PATH = f"/v1/models/{quote(NAME, safe='')}"
TUNED = {
    "id": NAME, "object": "model", "created": 1_700_000_000, "owned_by": "tunesmith",
    "kind": "lora", "base_model": "tiny", "adapter_id": "adp-1", "job_id": "ftjob-1", "step": 7,
    "bytes": 2048, "context_length": 512, "serving": "on_demand",
}  # fmt: skip
VERDICT = {
    "kind": "lora", "step": 7, "base_model": "tiny", "base_fingerprint": None, "dtype": "fp32",
    "quantization": "none", "vocabulary": 9, "arithmetic": "fp32", "probe": [[1, 2]],
    "max_difference": 1e-6, "tolerance": 1e-3, "rule": "a rule", "made_with": {"torch": "2.9"},
    "files": {},
}  # fmt: skip


def test_the_sdk_filters_and_pages_models() -> None:
    script = Script(
        httpx.Response(200, json=page(TUNED, has_more=True)), httpx.Response(200, json=page())
    )
    with client_of(script) as client:
        [found] = client.models.list(base="tiny", kind="lora", text="x", limit=1)
    assert (found.step, found.bytes, found.serving) == (7, 2048, "on_demand")
    queries = [dict(request.url.params) for request in script.requests]
    asked = {"base": "tiny", "kind": "lora", "text": "x", "limit": "1"}
    assert queries == [asked, asked | {"after": NAME}]


def test_the_commands_show_list_and_trace_models(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers["GET /v1/models"] = page(TUNED)
    assert NAME in tunesmith("models", "list", "--kind", "lora", "--text", "x").stdout
    assert server.seen[-1].target == "/v1/models?kind=lora&text=x"
    server.answers[f"GET {PATH}"] = TUNED
    shown = tunesmith("models", "show", NAME).stdout
    assert all(word in shown for word in ("2.0 KiB", "512", "on_demand", "ftjob-1", "adp-1"))
    assert json.loads(tunesmith("models", "show", NAME, "--json").stdout) == TUNED
    use = {
        "id": "evl-1", "object": "model.use", "kind": "evaluation", "role": "against",
        "created_at": 1_700_000_000, "status": "queued", "model": "other",
    }  # fmt: skip
    server.answers[f"GET {PATH}/uses"] = page(use)
    shown = tunesmith("models", "uses", NAME).stdout
    assert all(word in shown for word in ("evl-1", "against", "queued", "other"))


@pytest.mark.parametrize(("answer", "deletes"), [("n\n", False), ("y\n", True)])
def test_deleting_a_model_asks_once_in_a_terminal(
    tunesmith: Tunesmith,
    server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    deletes: bool,
) -> None:
    gone = {"id": NAME, "object": "model", "deleted": True}
    server.answers[f"DELETE {PATH}"] = gone
    monkeypatch.setattr(control, "_stdin_is_terminal", lambda: True)
    done = tunesmith("models", "delete", NAME, input=answer)
    assert (done.exit_code == 0) is deletes
    assert [seen.method for seen in server.seen] == ["DELETE"] * deletes
    assert json.loads(tunesmith("models", "delete", NAME, "--yes", "--json").stdout) == gone


def test_the_commands_list_adapters_and_show_the_verdict(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    adapter: dict[str, Any] = {
        "id": "adp-1", "object": "adapter", "created_at": 1_700_000_000, "job_id": "ftjob-1",
        "model": NAME, "base_model": "tiny", "kind": "lora", "step": 7, "bytes": 2048, "files": [],
    }  # fmt: skip
    server.answers["GET /v1/adapters"] = page(adapter)
    shown = tunesmith("adapters", "list").stdout
    assert all(word in shown for word in ("adp-1", NAME, "2.0 KiB"))
    server.answers["GET /v1/adapters/adp-1/verification"] = VERDICT
    shown = tunesmith("adapters", "verification", "adp-1").stdout
    assert all(word in shown for word in ("1e-06", "0.001 (a rule)", "torch 2.9"))
