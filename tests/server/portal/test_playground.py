"""Playground: states of the page, answers, limits, rights, ends of a stream, hostile texts."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx2
import pytest
from sqlalchemy import update

from tunesmith_server.core.security import key_hash
from tunesmith_server.core.settings import Settings
from tunesmith_server.inference import process, service
from tunesmith_server.models import DEFAULT_PROJECT, ApiKeyRow

from .. import fake_inference
from ..actors import FakeWakeUps, Server, serving
from ..callers import Caller
from ..live import listening
from ..teams import caller, two_teams
from .browser import SAME_SITE, Browser, signed_in
from .hostile import TEXTS
from .page_checks import Document, check_links, check_page

HERE = "/portal/playground"
BASE = "tiny-llama"
Line = dict[str, Any]  # Any: JSON


@pytest.fixture
def chatting(
    settings: Settings, wake_ups: FakeWakeUps, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """Server that starts the fake inference process on first use."""
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-S", fake_inference.__file__))
    with serving(settings.model_copy(update={"inference_child": True}), wake_ups) as running:
        yield running


@pytest.fixture
def url(chatting: Server) -> Iterator[str]:
    with listening(chatting.app) as url:
        yield url


class Tab(Browser):
    """Browser on a real connection: the inference process belongs to one event loop."""

    def __init__(self, url: str) -> None:
        self._client: Any = httpx2.Client(base_url=url, timeout=20)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def tab(url: str, chatting: Server) -> Iterator[Tab]:
    with tab_of(url, chatting.user) as tab:
        yield tab


@contextmanager
def tab_of(url: str, user: Caller) -> Iterator[Tab]:
    tab = Tab(url)
    assert tab.sign_in(user).status_code == 303
    yield tab
    tab.close()


def body(*columns: tuple[str, str], **settings: str) -> dict[str, Any]:
    """Return the body that a browser sends: a model and a prompt for each column."""
    return {
        "settings": {"sampling": "greedy", "max_tokens": "9", **settings},
        "columns": [
            {"model": model, "messages": [{"role": "user", "content": prompt}]}
            for model, prompt in columns
        ],
    }


def ask(browser: Browser, *columns: tuple[str, str], **settings: str) -> list[Line]:
    reply = browser.post(f"{HERE}/answers", json=body(*columns, **settings))
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in reply.text.splitlines() if line]


def text_of(lines: list[Line], column: int = 0) -> str:
    found = [line for line in lines if line.get("column") == column]
    return "".join(piece["text"] for line in found for piece in line.get("pieces", ()))


def error_of(lines: list[Line], column: int = 0) -> Any:  # Any: JSON
    [found] = [line for line in lines if "error" in line and line["column"] == column]
    return found["error"]


def told(server: Server) -> Any:  # Any: JSON
    own, _ = server.app.state.tunesmith.inference._open_engines
    running = own.engine._process
    headers = {"authorization": f"Bearer {running._token}"}
    return httpx.get(f"{running.url}/told", headers=headers).json()


def until(what: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def tuned_model(server: Server) -> str:
    job_id = server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim())
    return str(server.job(job_id)["fine_tuned_model"])


def test_the_page_offers_the_newest_tuned_model_beside_its_base(chatting: Server) -> None:
    tuned = tuned_model(chatting)
    browser = signed_in(chatting)
    page = check_page(browser.page(HERE))
    check_links(browser, page)
    assert [page.with_id(f"model{at}").attributes["value"] for at in (1, 2, 3)] == [BASE, tuned, ""]
    options = {item.attributes["value"]: item.text for item in page.all("option")}
    assert options[tuned] == f"tuned, base {BASE}"
    assert options[BASE] == "base model"
    assert 'href="/portal/playground"' in browser.page("/portal/jobs")


def test_the_address_has_models_settings_and_prompt(chatting: Server) -> None:
    browser = signed_in(chatting)
    given = {"model": [BASE, "x<y"], "system": "be <b>kind</b>", "user": "hello", "seed": "7",
             "sampling": "sampled"}  # fmt: skip
    page = check_page(browser.get(HERE, params=given).text)
    assert page.with_id("user").text.strip() == "hello"
    assert page.with_id("model2").attributes["value"] == "x<y"
    form = {item.attributes["name"]: item.attributes.get("value", item.text.strip())
            for item in page.all("input", "textarea") if item.attributes.get("name")}  # fmt: skip
    part = {**SAME_SITE, "hx-request": "true"}
    form |= {"sampling": "sampled"}
    reply = browser.post(f"{HERE}/check", data=form, headers=part)
    shown = Document(reply.text).with_id("same").text
    assert f"tunesmith chat 'x<y' \\\n  --against {BASE}" in shown
    assert "--system 'be <b>kind</b>'" in shown
    assert "--seed 7" in shown
    assert "/v1/chat/completions" in shown
    address = reply.headers["hx-replace-url"]
    again = check_page(browser.page(address))
    assert again.with_id("user").text == page.with_id("user").text
    assert again.with_id("model2").attributes["value"] == "x<y"
    long = browser.post(f"{HERE}/check", data=form | {"user": "x" * 401}, headers=part)
    assert "user=" not in long.headers["hx-replace-url"]
    sent = browser.post(f"{HERE}/check", data=form | {"user": "", "asked": "first"}, headers=part)
    assert "user=first" in sent.headers["hx-replace-url"]


def test_pages_without_a_right_without_inference_and_without_a_model(
    chatting: Server, server: Server
) -> None:
    viewer = signed_in(chatting, caller(chatting, "viewer"))
    assert "Your key may not chat" in check_page(viewer.page(HERE)).all("main")[0].text
    refused = viewer.post(f"{HERE}/answers", json=body((BASE, "hello")))
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "permission_denied"
    made = chatting.user.post("/v1/sessions", json={"name": "wall"}).json()
    screen = Browser(chatting)
    screen.post("/portal/sign-in", data={"link": made["path"].partition("link=")[2]})
    assert "This browser is signed in for display" in screen.page(HERE)
    assert screen.post(f"{HERE}/answers", json=body((BASE, "hello"))).status_code == 403
    off = check_page(signed_in(server).page(HERE)).all("main")[0].text
    assert "This server has no inference" in off


def test_answers_of_two_models_share_one_response(chatting: Server, tab: Tab) -> None:
    tuned = tuned_model(chatting)
    lines = ask(tab, (BASE, "one two three"), (tuned, "one 2 three"), logprobs="on")
    assert lines[0] == {"names": [BASE, tuned], "asked": "one two three"}
    assert (text_of(lines), text_of(lines, 1)) == ("one two three ", "one 2 three ")
    assert lines[-1] == {"differs": [[1], [1]]}
    [done] = [line for line in lines if line.get("done") and line["column"] == 1]
    assert done["figures"].endswith("2 tokens, 3 in the prompt, ended by itself")
    assert "to the first token" in done["figures"]
    piece = next(line for line in lines if line.get("pieces"))["pieces"][0]
    assert piece == {"text": "one ", "tone": 3, "detail": "“one ” 80 %, “other” 10 %"}
    sent = told(chatting)["requests"][0]
    assert (sent["temperature"], sent["max_tokens"], sent["top_logprobs"]) == (0, 9, 5)
    assert sent["cache_salt"] == DEFAULT_PROJECT
    lines = ask(tab, (BASE, "a"), sampling="sampled", temperature="0.5", seed="3")
    assert "tone" not in str(lines)
    sent = told(chatting)["requests"][-1]
    assert (sent["temperature"], sent["seed"], "logprobs" in sent) == (0.5, 3, False)


def test_an_error_stays_in_its_column_with_code_hint_and_request_id(tab: Tab) -> None:
    lines = ask(tab, (BASE, "hello"), (BASE, "full"), ("none", "x"), (BASE, "fail"))
    assert text_of(lines) == "hello "
    busy = error_of(lines, 1)
    assert (busy["code"], busy["retry_after"]) == ("rate_limit_exceeded", "7")
    assert busy["request_id"].startswith("req-")
    missing = error_of(lines, 2)
    assert (missing["code"], missing["message"]) == (
        "model_not_found", "No model 'none' on this server.",
    )  # fmt: skip
    assert missing["hint"]
    assert "no memory" in error_of(lines, 3)["message"]
    wrong = error_of(ask(tab, (BASE, "x"), sampling="sampled", temperature="9"))
    assert wrong["param"] == "temperature"
    assert wrong["code"] == "invalid_request"


def test_an_inference_process_that_cannot_start_says_why(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROBLEM", "torch is not installed")
    found = error_of(ask(tab, (BASE, "hello")))
    assert found["code"] == "unavailable"
    assert found["message"].startswith("The inference process did not start")
    assert found["hint"]
    assert found["request_id"].startswith("req-")


def test_models_of_the_project_and_shared_ones_answer(chatting: Server, url: str) -> None:
    admin, own, other = two_teams(chatting)
    with tab_of(url, own.server.user) as browser:
        lines = ask(browser, (other.model, "hello"), (own.model, "hello"))
        assert error_of(lines)["code"] == "model_not_found"
        assert text_of(lines, 1) == "hello "
        assert other.model not in browser.page(HERE)
        path = f"/v1/fine_tuning/checkpoints/{other.model}/permissions"
        headers = {"openai-project": other.project_id}
        shared = admin.post(path, json={"project_ids": [own.project_id]}, headers=headers)
        assert shared.status_code == 200, shared.text
        assert text_of(ask(browser, (other.model, "hello"))) == "hello "
        assert other.model in browser.page(HERE)


def test_each_column_counts_for_the_limits_of_the_key(
    chatting: Server, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tab
    monkeypatch.setattr(service, "MOST_OF_KEY", 1)
    lines = ask(browser, (BASE, "a b"), (BASE, "a b"))
    codes = [line["error"]["code"] for line in lines if "error" in line]
    assert codes == ["rate_limit_exceeded"]
    monkeypatch.setattr(service, "MOST_OF_KEY", 128)
    monkeypatch.setattr(chatting.app.state.tunesmith.rate_limits, "_default", 2)
    lines = ask(browser, (BASE, "a"), (BASE, "a"), (BASE, "a"))
    [limited] = [line["error"] for line in lines if "error" in line]
    assert limited["message"] == "This key may send 2 requests per minute."
    assert int(limited["retry_after"]) > 0


def test_another_site_and_a_missing_session_are_refused(chatting: Server) -> None:
    browser = signed_in(chatting)
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}, {}):
        reply = browser.post(f"{HERE}/answers", json=body((BASE, "hello")), headers=headers)
        assert reply.status_code == 403, headers
    assert Browser(chatting).post(f"{HERE}/answers", json=body((BASE, "x"))).status_code == 401
    bodies: tuple[Any, ...] = (
        *({"columns": []}, {"settings": {}, "columns": [{}] * 5}, [1], {"settings": 3}),
    )
    for wrong in bodies:
        assert browser.post(f"{HERE}/answers", json=wrong).status_code == 400, wrong
    assert browser.post(f"{HERE}/answers", content=b"{").status_code == 400
    assert browser.post(f"{HERE}/answers", content=b"x" * 2_000_000).status_code == 413


@pytest.mark.parametrize("how", ["sign out", "revoke", "leave"])
def test_a_stream_ends_with_its_session_key_or_tab(chatting: Server, url: str, how: str) -> None:
    lead = caller(chatting, "lead")
    key = lead.headers["authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=url, headers=SAME_SITE) as client:
        client.post("/portal/sign-in", data={"key": key})
        sent = body((BASE, "slow"), (BASE, "slow"))
        with client.stream("POST", f"{HERE}/answers", json=sent, timeout=20) as reply:
            lines = reply.iter_lines()
            while "pieces" not in next(lines):
                pass
            until(lambda: told(chatting)["streaming"] == 2)
            began = time.monotonic()
            if how != "leave":
                threading.Timer(0, end, (how, client, chatting, key)).start()
                last = [line for line in lines if line][-1]
                assert json.loads(last)["error"]["code"] == "invalid_api_key"
                assert time.monotonic() - began < 3
        until(lambda: told(chatting)["cancelled"] == 2)


def end(how: str, client: httpx.Client, server: Server, key: str) -> None:
    if how == "sign out":
        cookies = dict(client.cookies)
        httpx.post(f"{client.base_url}/portal/sign-out", headers=SAME_SITE, cookies=cookies)
        return
    with server.database.write.begin() as session:
        revoked = update(ApiKeyRow).where(ApiKeyRow.sha256 == key_hash(key))
        session.execute(revoked.values(revoked_at=time.time()))


def test_hostile_prompts_and_completions_are_data(tab: Tab) -> None:
    """The page sets texts as text, so markup needs no escape; symbols replace what is hidden."""
    browser = tab
    for hostile in TEXTS[:-1]:
        lines = ask(browser, (BASE, hostile), logprobs="on")
        assert text_of(lines) == f"{hostile} "
        shown = "".join(
            piece.get("shown", piece["text"]) + piece["detail"]
            for line in lines
            for piece in line.get("pieces", ())
        )
        assert not [
            char for char in shown + lines[0]["asked"] if char in "\0\x1b\u202e\u2066\ufeff"
        ]
        check_page(browser.get(HERE, params={"user": hostile, "model": hostile}).text)


def test_the_chat_template_of_a_model_is_shown(chatting: Server) -> None:
    browser = signed_in(chatting)
    folder = next(iter(chatting.settings.base_model_folders())) / BASE
    path = f"{HERE}/template?model={BASE}"
    assert "not on the API" in browser.page(path)
    (folder / "tokenizer.json").write_text("{}")
    assert "no chat template" in browser.page(path)
    template = "{% for m in messages %}<b>{{ m }}</b>{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert Document(browser.page(path)).all("pre")[0].text == template
    (folder / "chat_template.jinja").write_text("newer")
    assert "newer" in browser.page(path)
