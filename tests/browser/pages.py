"""All pages that the browser tests and the screenshots visit.

One line here gives a page its tests: console, requests, accessibility in both themes and sizes,
sideways scrolling, forced colours, reduced motion, hostile texts; and its screenshots. Pages that
another caller sees differently, and pages that fail, are visited by fewer tests.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .callers import Caller
    from .faults import Fault
    from .service import Service


_SEND = """path => {
  const form = document.body.appendChild(document.createElement("form"));
  form.method = "post";
  form.action = path;
  form.submit();
}"""


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
    caller: Caller = "ann"
    """Whose session opens the page."""
    fault: Fault | None = None
    """What goes wrong in the service while the page is opened."""
    sends: str = ""
    """Path to which the open page sends a form without its scripts; the answer shows `ready`."""
    status: int = 200
    click: str = ""
    """Selector of an element that is clicked first; `ready` appears after the click."""
    away: float = 0.0
    """Seconds since the last visit of the home page; 0 if the browser has not visited it."""
    axe: bool = True
    """False for a page that is not ours."""

    @property
    def is_state(self) -> bool:
        """Return True for a page as another caller sees it, and for a page that fails."""
        return self.caller not in ("ann", "nobody") or self.fault is not None

    def address(self, service: Service) -> str:
        """Return path and query, with ids of the service's world."""
        return self._filled(self.path, service)

    def _filled(self, path: str, service: Service) -> str:
        files = {f"file {what}": file_id for what, file_id in service.world.files.items()}
        models = {f"model of {what}": name for what, name in service.world.results.items()}
        links = {f"link of {what}": path for what, path in service.world.links.items()}
        return path.format_map(service.world.jobs | files | models | links)

    def open(self, page: Page, service: Service) -> None:
        """Open the page and wait until it is complete."""
        if self.away:
            value = f"{int(time.time() - self.away)}.0"
            cookie = {"name": "tunesmith_visit", "value": value, "url": f"{service.url}/portal"}
            page.context.add_cookies([cookie])
        with self.fault(service) if self.fault else nullcontext():
            page.goto(self.address(service))
            if self.click:
                page.locator(self.click).click()
            if self.sends:
                page.evaluate(_SEND, self._filled(self.sends, service))
            page.wait_for_selector(self.ready)


VISITS = (
    Visit(name="sign-in", path="/portal/sign-in", ready="#key", caller="nobody"),
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
    Visit(name="job-edit", path="/portal/jobs/{hostile}/edit", ready=".edit"),
    Visit(
        name="job-edits",
        path="/portal/jobs/{running}",
        click="#head a[data-key=n]",
        ready="dialog[open] .edit",
    ),
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
    Visit(name="shared", path="{link of running}", ready="#shared img", caller="nobody"),
    Visit(name="shared-queued", path="{link of queued}", ready="#shared", caller="nobody"),
    Visit(name="shared-hostile", path="{link of hostile}", ready="#shared", caller="nobody"),
    Visit(name="settings", path="/portal/settings", ready="#you"),
    Visit(name="missing", path="/portal/no-such-page", ready=".failure", status=404),
    # Swagger UI is vendored; its colours and its markup violate rules of axe.
    Visit(name="api-docs", path="/docs", ready=".opblock-tag", caller="nobody", axe=False),
    # A project without anything.
    Visit(name="empty-home", caller="newcomer", path="/portal", ready=".starts"),
    Visit(name="empty-jobs", caller="newcomer", path="/portal/jobs", ready=".empty"),
    Visit(name="empty-new-job", caller="newcomer", path="/portal/jobs/new", ready="#ready"),
    Visit(name="empty-data", caller="newcomer", path="/portal/data", ready=".empty"),
    Visit(name="empty-models", caller="newcomer", path="/portal/models", ready=".empty"),
    Visit(name="empty-playground", caller="newcomer", path="/portal/playground", ready="#answers"),
    Visit(name="empty-settings", caller="newcomer", path="/portal/settings", ready="#you"),
    Visit(name="empty-screen", caller="newcomer", path="/portal/screen", ready="#screen"),
    # A key that may only read.
    Visit(name="viewer-home", caller="viewer", path="/portal", ready="#home"),
    Visit(name="viewer-jobs", caller="viewer", path="/portal/jobs", ready="#jobs"),
    Visit(
        name="viewer-job",
        caller="viewer",
        path="/portal/jobs/{failed}",
        ready="[data-main] .uplot",
    ),
    Visit(name="viewer-new-job", caller="viewer", path="/portal/jobs/new", ready=".empty"),
    Visit(name="viewer-data", caller="viewer", path="/portal/data", ready="#rows"),
    Visit(
        name="viewer-data-file",
        caller="viewer",
        path="/portal/data/{file train}",
        ready=".data-row",
    ),
    Visit(
        name="viewer-model",
        caller="viewer",
        path="/portal/models/{model of succeeded}",
        ready=".verdict .num",
    ),
    Visit(name="viewer-playground", caller="viewer", path="/portal/playground", ready=".empty"),
    Visit(
        name="viewer-links", caller="viewer", path="/portal/jobs/{running}/links", ready="#share"
    ),
    Visit(name="viewer-settings", caller="viewer", path="/portal/settings", ready="#you"),
    # A browser that is signed in for display.
    Visit(name="display-screen", caller="display", path="/portal/screen", ready="#screen"),
    Visit(name="display-home", caller="display", path="/portal", ready="#home"),
    Visit(
        name="display-job",
        caller="display",
        path="/portal/jobs/{running}",
        ready="[data-main] .uplot",
    ),
    Visit(name="display-playground", caller="display", path="/portal/playground", ready=".empty"),
    Visit(name="display-settings", caller="display", path="/portal/settings", ready="#you"),
    # Errors.
    Visit(
        name="error-403",
        caller="viewer",
        path="/portal/jobs/{running}",
        status=403,
        sends="/portal/jobs/{running}/pause",
        ready=".failure",
    ),
    Visit(
        name="error-429",
        caller="limited",
        path="/portal/jobs",
        status=429,
        fault=faults.spent,
        ready=".failure",
    ),
    Visit(
        name="error-500",
        path="/portal/workers",
        status=500,
        fault=faults.broken,
        ready=".failure",
    ),
    Visit(
        name="error-503",
        path="/portal/jobs/{reinforced}/completions",
        status=503,
        fault=faults.away,
        ready=".failure",
    ),
)
