"""The portal behind the proxy of compose.tls.yml: TLS, cookies, redirects, links, the live stream,
and requests from other sites; with PostgreSQL and Valkey."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import httpx
import pytest
from benchmarks.portal_parts import live
from sqlalchemy import func, select

from tunesmith_server.models import ApiKeyRow, AuditRow, EventRow
from tunesmith_server.services import sessions

from ..deploy.proxy import CADDY
from . import chromium
from .behind_proxy import Deployed, deployed
from .signing_in import enter_key
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import BrowserContext

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.stacks,
    pytest.mark.skipif(not CADDY.exists(), reason="Caddy is installed on Linux x86-64"),
]
SESSION = "__Host-tunesmith_session"
OWN = {"sec-fetch-site": "same-origin"}
SIGN_IN = "/portal/sign-in"
ClientFrom = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployed(tmp_path_factory.mktemp("proxied")) as running:
        yield running


@pytest.fixture
def watched(running_chromium: Running, proxied: Deployed) -> Iterator[tuple[BrowserContext, Watch]]:
    """Profile that accepts the proxy's certificate. At the end of the test, messages of the console
    and requests to other hosts fail it."""
    opened = chromium.new_context(
        running_chromium, base_url=proxied.service.url, ignore_https_errors=True
    )
    watch = Watch(opened, proxied.service.url)
    yield opened, watch
    opened.close()
    watch.check()


@pytest.fixture
def client_from(proxied: Deployed) -> Iterator[ClientFrom]:
    """Function that opens a client of the proxy at an address of this machine."""
    with ExitStack() as clients:
        yield lambda source="127.0.0.1": clients.enter_context(proxied.client(source=source))


@pytest.fixture
def stranger(client_from: ClientFrom) -> httpx.Client:
    """Client without a session."""
    return client_from()


@pytest.fixture
def client(client_from: ClientFrom, proxied: Deployed) -> httpx.Client:
    return sign_in(client_from(), proxied)


def sign_in(client: httpx.Client, proxied: Deployed) -> httpx.Client:
    reply = client.post(SIGN_IN, data={"key": proxied.service.key}, headers=OWN)
    assert reply.status_code == 303, reply.text
    return client


def test_a_user_signs_in_and_a_page_is_live_over_tls(
    proxied: Deployed, watched: tuple[BrowserContext, Watch]
) -> None:
    context, page = watched[0], watched[0].new_page()
    page.goto("/portal/jobs?state=running")
    assert page.url.startswith(f"{proxied.service.url}{SIGN_IN}?to=")
    enter_key(page, proxied.service.key)
    assert page.url.startswith(f"{proxied.service.url}/portal")
    [session] = [cookie for cookie in context.cookies() if "session" in cookie["name"]]
    assert (session["name"], session["path"], session["sameSite"]) == (SESSION, "/", "Lax")
    assert (session["secure"], session["httpOnly"]) == (True, True)
    figures = live.measure_latency(page, proxied.service, 8, 2000)
    assert figures["latency_p95_s"] <= 3 * live.BARS["latency_p95_s"], figures
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{proxied.service.url}{SIGN_IN}*")
    assert [cookie for cookie in context.cookies() if "session" in cookie["name"]] == []


def test_a_page_says_that_the_api_is_away_and_recovers(
    proxied: Deployed, watched: tuple[BrowserContext, Watch]
) -> None:
    context, watch = watched
    watch.expected = {502}
    page, api = context.new_page(), proxied.host.container("api")
    enter_key(page, proxied.service.key)
    page.goto("/portal/jobs")
    page.wait_for_selector("#live[data-state=on]")
    shown = page.locator("#rows tr").count()
    api.kill()
    page.locator("#live[data-state=lost]").wait_for()
    page.locator("input[name=q]").first.fill("night-run")
    page.locator("#notice", has_text="The service does not answer").wait_for()
    assert page.locator("#rows tr").count() == shown
    api.start()
    proxied.host.until(api.healthy, "health of the API")
    page.locator("#live[data-state=on]").wait_for()
    page.locator("input[name=q]").first.fill("night-ru")
    page.locator("#notice").wait_for(state="hidden")
    assert page.locator("#rows tr").count() == 1


def test_a_form_keeps_its_text_while_the_api_is_away(
    proxied: Deployed, watched: tuple[BrowserContext, Watch]
) -> None:
    context, watch = watched
    watch.expected = {502}
    page, api = context.new_page(), proxied.host.container("api")
    enter_key(page, proxied.service.key)
    page.goto("/portal/settings")
    name = page.get_by_label("Name of the screen")
    name.fill("hall")
    api.kill()
    name.press("Enter")
    page.locator("#notice", has_text="Nothing was sent").wait_for()
    assert name.input_value() == "hall"
    api.start()
    proxied.host.until(api.healthy, "health of the API")
    name.press("Enter")
    page.locator(".callout code", has_text="link=").wait_for()


def test_a_redirect_keeps_https_and_the_host(
    proxied: Deployed, client: httpx.Client, stranger: httpx.Client
) -> None:
    url = proxied.service.url
    with httpx.Client() as plain:
        sent = plain.get(f"{proxied.plain_url}/portal/jobs?q=a").headers["location"]
    assert sent == f"{url}/portal/jobs?q=a"
    followed = (
        (client.get("/"), "/portal"),
        (client.get(f"{SIGN_IN}?to=/portal/jobs"), "/portal/jobs"),
        (stranger.get("/portal/jobs?q=a"), f"{SIGN_IN}?to=%2Fportal%2Fjobs%3Fq%3Da"),
        (client.post("/portal/theme", data={"theme": "dark"}, headers=OWN), "/portal"),
    )
    for reply, expected in followed:
        at = reply.request.url
        assert urljoin(str(at), reply.headers["location"]) == f"{url}{expected}", at


def test_cookies_are_secure_and_of_this_host_only(
    proxied: Deployed, stranger: httpx.Client
) -> None:
    data = {"key": proxied.service.key}
    replies = {
        # A client cannot make the API believe that it uses http or another host.
        SESSION: stranger.post(
            SIGN_IN, data=data,
            headers=OWN | {"x-forwarded-proto": "http", "x-forwarded-host": "evil.example"},
        ),
        "tunesmith_theme": stranger.post("/portal/theme", data={"theme": "dark"}, headers=OWN),
    }  # fmt: skip
    for name, reply in replies.items():
        cookie = reply.headers["set-cookie"]
        assert cookie.startswith(f"{name}="), cookie
        assert "Secure" in cookie, cookie
        assert "Domain" not in cookie, cookie
    assert "Path=/;" in replies[SESSION].headers["set-cookie"]
    with httpx.Client(base_url=proxied.api_url) as direct:  # this machine is not the proxy
        forged = direct.post(SIGN_IN, data=data, headers=OWN | {"x-forwarded-proto": "https"})
    assert forged.headers["set-cookie"].startswith("tunesmith_session=")


def test_only_the_address_of_the_proxy_is_our_own_origin(
    proxied: Deployed, client: httpx.Client
) -> None:
    url = proxied.service.url
    for origin in (
        url.replace("https", "http"), proxied.plain_url, proxied.api_url, "https://localhost",
        "null", f"{url}.evil.example", None,
    ):  # fmt: skip
        headers = {"origin": origin} if origin else {}
        reply = client.post("/portal/theme", data={"theme": "dark"}, headers=headers)
        assert (reply.status_code, "set-cookie" in reply.headers) == (403, False), origin
    reply = client.post("/portal/theme", data={"theme": "dark"}, headers={"origin": url})
    assert reply.status_code == 303


def test_links_name_the_address_of_the_proxy(proxied: Deployed, client: httpx.Client) -> None:
    url = proxied.service.url
    page = client.post("/portal/settings/displays", data={"name": "wall"}, headers=OWN).text
    [link] = re.findall(r"https?://[^<\s\"]*link=[^<\s\"]*", page)
    assert unescape(link).startswith(f"{url}{SIGN_IN}?link=")
    pages = ("/portal/jobs", "/portal/jobs/new", "/portal/playground", "/portal/settings")
    for path in pages:
        text = client.get(path, headers={"x-forwarded-host": "evil.example"}).text
        assert f"{url}/v1" in text, path
        assert proxied.api_url not in text, path
        assert "evil.example" not in text, path


def test_a_link_signs_in_one_browser(
    proxied: Deployed, watched: tuple[BrowserContext, Watch], stranger: httpx.Client
) -> None:
    with proxied.service.database.write.begin() as session:
        ann = session.scalars(select(ApiKeyRow.id).where(ApiKeyRow.name == "ann")).one()
        _, secret = sessions.create(session, ann, "link")
    address = f"{proxied.service.url}{SIGN_IN}?link={secret}"
    page = watched[0].new_page()
    page.goto(address)
    page.get_by_role("button", name="Open the portal").click()
    page.wait_for_url(f"{proxied.service.url}/portal")
    reply = stranger.post(SIGN_IN, data={"link": secret}, headers=OWN)
    assert (reply.status_code, "set-cookie" in reply.headers) == (401, False)


def test_failed_sign_ins_count_for_the_address_of_the_client(
    proxied: Deployed, client_from: ClientFrom
) -> None:
    guessing = client_from("127.0.0.7")
    for number in range(10):
        forged = OWN | {"x-forwarded-for": f"192.0.2.{number}"}
        reply = guessing.post(SIGN_IN, data={"key": "wrong"}, headers=forged)
        assert reply.status_code == 401
    data = {"key": proxied.service.key}
    assert guessing.post(SIGN_IN, data=data, headers=OWN).status_code == 429
    client = sign_in(client_from("127.0.0.8"), proxied)
    client.post("/portal/settings/displays", data={"name": "of an address"}, headers=OWN)
    with proxied.service.database.read() as session:
        newest = select(AuditRow.address).order_by(AuditRow.seq.desc())
        assert session.scalars(newest.limit(1)).one() == "127.0.0.8"


def test_the_workers_api_is_hidden_from_other_hosts(client_from: ClientFrom) -> None:
    for source, status in (("127.0.0.1", 401), ("127.0.0.9", 404)):
        reply = client_from(source).post("/internal/jobs/claim", json={})
        assert reply.status_code == status, source


def test_the_stream_passes_without_a_buffer(proxied: Deployed, client: httpx.Client) -> None:
    """Each event comes through the proxy as soon as it comes from the API itself."""
    job_id = proxied.service.world.jobs["running"]
    moments: dict[str, list[float]] = {"proxy": [], "api": []}
    steps = range(500_000, 500_010)
    with proxied.service.database.read() as session:
        last = session.scalar(select(func.max(EventRow.seq)).where(EventRow.job_id == job_id))
    ready = threading.Semaphore(0)

    def read(who: str, reader: httpx.Client) -> None:
        with reader.stream("GET", f"/portal/live?watch={job_id}:{last}") as reply:
            for line in reply.iter_lines():
                if line.startswith("event: hello"):
                    ready.release()
                moments[who] += [time.monotonic()] * ('"step"' in line)
                if len(moments[who]) == len(steps):
                    return

    with httpx.Client(base_url=proxied.api_url, timeout=20) as direct:
        pairs = (("proxy", client), ("api", sign_in(direct, proxied)))
        readers = [threading.Thread(target=read, args=pair) for pair in pairs]
        for reader in readers:
            reader.start()
        for _ in readers:
            assert ready.acquire(timeout=20)
        for step in steps:
            live.tell(proxied.service, job_id, step)
            time.sleep(0.3)
        for reader in readers:
            reader.join(20)
    later = sorted(a - b for a, b in zip(moments["proxy"], moments["api"], strict=True))
    assert len(later) == len(steps)
    assert later[len(later) // 2] < 0.1, later
