"""All pages that the browser tests and the screenshots visit.

One line here gives a page its tests: console, requests, accessibility in both themes and sizes,
sideways scrolling, forced colours, reduced motion, hostile texts; and its screenshots.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .service import Service


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A page in one of its states."""

    name: str
    """Name of the test and of the screenshots."""
    path: str
    """Path and query. `{running}` is the id of the world's job of this name, `{file train}` that of
    a file, `{model of succeeded}` the name of the job's model, `{link of running}` the path of a
    link that shows the job; see seeding."""
    ready: str
    """Selector of an element that shows that the page is complete."""
    anonymous: bool = False
    """True if the page is opened without a session."""
    status: int = 200
    click: str = ""
    """Selector of an element that is clicked first; `ready` appears after the click."""
    away: float = 0.0
    """Seconds since the last visit of the home page; 0 if the browser has not visited it."""
    axe: bool = True
    """False for a page that is not ours."""

    def address(self, service: Service) -> str:
        """Return path and query, with ids of the service's world."""
        files = {f"file {what}": file_id for what, file_id in service.world.files.items()}
        models = {f"model of {what}": name for what, name in service.world.results.items()}
        links = {f"link of {what}": path for what, path in service.world.links.items()}
        return self.path.format_map(service.world.jobs | files | models | links)

    def open(self, page: Page, service: Service) -> None:
        """Open the page and wait until it is complete."""
        if self.away:
            value = f"{int(time.time() - self.away)}.0"
            cookie = {"name": "tunesmith_visit", "value": value, "url": f"{service.url}/portal"}
            page.context.add_cookies([cookie])
        page.goto(self.address(service))
        if self.click:
            page.locator(self.click).click()
        page.wait_for_selector(self.ready)


VISITS = (
    Visit(name="sign-in", path="/portal/sign-in", ready="#key", anonymous=True),
    Visit(name="jobs", path="/portal/jobs", ready="#jobs"),
    Visit(name="jobs-none", path="/portal/jobs?q=no+job+has+this+text", ready="#jobs"),
    Visit(name="home", path="/portal", ready="#home"),
    Visit(name="home-away", path="/portal", away=86_400.0, ready="#away"),
    Visit(name="workers", path="/portal/workers", ready="#workers"),
    Visit(name="screen", path="/portal/screen", ready="#screen"),
    Visit(name="job", path="/portal/jobs/{running}", ready="[data-main] .uplot"),
    Visit(
        name="job-reinforcement", path="/portal/jobs/{reinforcement}", ready="[data-main] .uplot"
    ),
    Visit(name="job-failed", path="/portal/jobs/{failed}", ready="[data-main] .uplot"),
    Visit(name="job-queued", path="/portal/jobs/{queued}", ready="#why li"),
    Visit(name="job-asks", path="/portal/jobs/{paused}?ask=cancel", ready="dialog[open]"),
    Visit(name="job-hostile", path="/portal/jobs/{hostile}", ready="#why li"),
    Visit(
        name="compare",
        path="/portal/compare?jobs={running},{succeeded},{failed}",
        ready="[data-main] .uplot",
    ),
    Visit(
        name="compare-reinforcement",
        path="/portal/compare?jobs={reinforcement},{reinforced}&axis=tokens",
        ready="#side article",
    ),
    Visit(name="compare-none", path="/portal/compare", ready=".empty"),
    Visit(name="completions", path="/portal/jobs/{reinforced}/completions", ready=".group"),
    Visit(
        name="completions-across",
        path="/portal/jobs/{reinforced}/completions?row=2",
        ready=".moments",
    ),
    Visit(
        name="completions-hostile",
        path="/portal/jobs/{hostile samples}/completions?all=1",
        ready="#completions tbody",
    ),
    Visit(name="jobs-filters", path="/portal/jobs?owner=ann&label=team=x", ready="#jobs"),
    Visit(name="new-job", path="/portal/jobs/new", ready="#ready"),
    Visit(
        name="new-job-file",
        path="/portal/jobs/new?training_file={file train}",
        ready=".data-row",
    ),
    Visit(
        name="new-job-all",
        path="/portal/jobs/new",
        click="details.all > summary",
        ready="details.all[open]",
    ),
    Visit(
        name="new-job-refused",
        path="/portal/jobs/new",
        click="#start",
        ready="#problems",
        status=400,
    ),
    Visit(name="new-job-again", path="/portal/jobs/new?from={reinforcement}", ready="#ready"),
    Visit(name="data", path="/portal/data", ready="#rows"),
    Visit(name="data-none", path="/portal/data?q=no+file+has+this+text", ready="#files"),
    Visit(name="data-file", path="/portal/data/{file train}", ready=".data-row"),
    Visit(name="data-bad", path="/portal/data/{file bad}", ready=".data-row"),
    Visit(name="data-hostile", path="/portal/data/{file hostile-rows}", ready=".data-row"),
    Visit(name="models", path="/portal/models?checkpoints=1", ready="#models"),
    Visit(name="model", path="/portal/models/{model of succeeded}", ready=".verdict .num"),
    Visit(name="model-base", path="/portal/models/tiny-llama", ready="#h-workers"),
    Visit(name="playground", path="/portal/playground?user=3+plus+3%3F", ready="#answers"),
    Visit(name="job-links", path="/portal/jobs/{running}/links", ready="#share"),
    Visit(
        name="job-links-made",
        path="/portal/jobs/{queued}/links",
        click="#share form button",
        ready="#made",
    ),
    Visit(name="shared", path="{link of running}", ready="#shared img", anonymous=True),
    Visit(name="shared-queued", path="{link of queued}", ready="#shared", anonymous=True),
    Visit(name="shared-hostile", path="{link of hostile}", ready="#shared", anonymous=True),
    Visit(name="settings", path="/portal/settings", ready="#you"),
    Visit(name="missing", path="/portal/no-such-page", ready=".failure", status=404),
    # Swagger UI is vendored; its colours and its markup violate rules of axe.
    Visit(name="api-docs", path="/docs", ready=".opblock-tag", anonymous=True, axe=False),
)
