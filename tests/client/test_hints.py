"""Hints: the words of each interface, and the base URL without `/v1`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

import tunesmith
from tunesmith import Client, NotFoundError, TunesmithError
from tunesmith._http import hints
from tunesmith.cli import app

from .conftest import Tunesmith
from .fakes import Script, client_of, refusal
from .local_server import LocalServer


def test_a_servers_route_becomes_a_call_and_a_command(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    hint = "POST /v1/fine_tuning/jobs/ftjob-1/retry repeats it; GET /v1/fine_tuning/jobs lists all"
    error = {"message": "no", "type": "t", "hint": hint}
    with pytest.raises(NotFoundError) as caught:
        client_of(Script(refusal(404, hint=hint))).models.list()
    assert caught.value.hint == (
        "client.fine_tuning.jobs.retry('ftjob-1') repeats it; "
        "client.fine_tuning.jobs.list() lists all"
    )
    server.answers["GET /v1/models"] = (404, {"error": error})
    assert (
        "hint: `tunesmith jobs retry ftjob-1` repeats it; `tunesmith jobs list` lists all\n"
        in tunesmith("models", "list").stderr
    )


@pytest.mark.parametrize(("route", "call", "command"), hints._NAMES, ids=lambda name: name or "-")
def test_every_call_and_command_in_a_hint_exists(route: str, call: str, command: str) -> None:
    if call.startswith("client."):
        target: Any = Client(api_key="sk")
        for name in call.removeprefix("client.").split("(")[0].split("."):
            target = getattr(target, name)
        assert callable(target)
    if command.startswith("tunesmith "):
        assert_command_exists(command)
    assert route == "" or re.match(r"(GET|POST|DELETE) /v1/", route)


def test_every_command_that_the_client_names_exists() -> None:
    for path in Path(tunesmith.__file__).parent.rglob("*.py"):
        for name in re.findall(
            r"tunesmith ((?:jobs|files|adapters|models) [a-z]+)", path.read_text()
        ):
            assert_command_exists(f"tunesmith {name}")


def assert_command_exists(line: str) -> None:
    group: Any = typer.main.get_command(app)
    _, *words = line.split()
    for word in words[:2]:
        group = group.commands[word]


HTML = httpx.Response(200, text="<html>a page</html>")
NO_PAGE = httpx.Response(404, text="<html>nginx</html>")
NO_ROUTE = refusal(404, message="no route GET /models", code="not_found", hint="see /docs")


@pytest.mark.parametrize("answer", [HTML, NO_PAGE, NO_ROUTE], ids=["page", "404", "no route"])
@pytest.mark.parametrize("url", ["http://server.test", "http://server.test/"])
def test_a_base_url_without_v1_is_named_with_its_remedy(url: str, answer: httpx.Response) -> None:
    client = Client(url, "sk", transport=httpx.MockTransport(Script(answer)), max_retries=0)
    with pytest.raises(TunesmithError) as caught:
        client.models.list()
    assert caught.value.hint == (
        "the base URL http://server.test lacks /v1: "
        "set base_url= or TUNESMITH_BASE_URL to http://server.test/v1"
    )


@pytest.mark.parametrize("answer", [HTML, NO_PAGE, NO_ROUTE], ids=["page", "404", "no route"])
def test_a_base_url_with_v1_is_not_blamed(answer: httpx.Response) -> None:
    with pytest.raises(TunesmithError) as caught:
        client_of(Script(answer), max_retries=0).models.list()
    assert "lacks /v1" not in str(caught.value)


def test_a_missing_object_behind_another_prefix_keeps_its_own_hint() -> None:
    answer = refusal(404, message="no job 'ftjob-9'", hint="check the id")
    transport = httpx.MockTransport(Script(answer))
    client = Client("http://proxy.test/tunesmith", "sk", transport=transport, max_retries=0)
    with pytest.raises(NotFoundError) as caught:
        client.fine_tuning.jobs.retrieve("ftjob-9")
    assert caught.value.hint == "check the id"


def test_the_command_names_its_own_option(tunesmith: Tunesmith, server: LocalServer) -> None:
    url = server.url.removesuffix("/v1")
    done = tunesmith("--base-url", url, "models", "list")
    assert done.exit_code == 1
    assert f"set --base-url or TUNESMITH_BASE_URL to {url}/v1" in done.stderr
