"""State of the page of completions, from its address: step, filters, followed prompt, open
completion."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from urllib.parse import urlencode

from tunesmith_server.portal.visit import Visit
from tunesmith_server.services.results.sample_search import SampleFilters

_SAMPLE = re.compile(r"ftsample-[0-9a-f]{1,64}-(\d{1,9})-\d{1,9}")
_MAX_TEXT = 200
ENDINGS = {"": "Any end", "stop": "Ended by itself", "length": "Cut"}


@dataclass(frozen=True, kw_only=True)
class CompletionsView:
    """Completions that the visitor looks at."""

    job_id: str
    step: int | None
    """Step that is shown; None means the newest step with samples."""
    came_from: int | None
    """Step that the slider showed before. If `step` has no samples, the page shows the next step
    with samples in the direction of the slider's move."""
    reward_lt: str
    reward_gt: str
    """Lower limit of the reward, as the visitor typed it; empty for no limit."""
    ending: str
    """Filter by the end of the completion: a key of `ENDINGS`."""
    ungraded: bool
    text: str
    all_steps: bool
    """True for a search in all steps, newest first."""
    row: int | None
    """Row of the training data whose prompt is followed across steps."""
    place: int
    """At each step, the page shows the prompt's completion with this index, from 0."""
    after: str
    """Id of the last item of the previous page."""
    sample: str
    """Id of the completion that is open; empty for none."""

    @property
    def opened_step(self) -> int | None:
        match = _SAMPLE.fullmatch(self.sample)
        return int(match[1]) if match else None

    @property
    def path(self) -> str:
        return f"/portal/jobs/{self.job_id}/completions"

    @property
    def filters(self) -> SampleFilters:
        return SampleFilters(
            reward_lt=_number(self.reward_lt),
            reward_gt=_number(self.reward_gt),
            ungraded=True if self.ungraded else None,
            finish_reason=self.ending or None,
            text=self.text or None,
        )

    @property
    def is_filtered(self) -> bool:
        return not self.filters.is_empty()

    def address(self, part: str = "", **changes: str) -> str:
        """Return the address of this view with some of its parameters changed. Any change closes
        the open completion and shows the first page of the list. `part`: text appended to the path
        of the page."""
        values = {
            "step": "" if self.step is None else str(self.step), "reward_lt": self.reward_lt,
            "reward_gt": self.reward_gt, "finish_reason": self.ending,
            "ungraded": "1" if self.ungraded else "", "q": self.text,
            "all": "1" if self.all_steps else "", "row": "" if self.row is None else str(self.row),
            "place": str(self.place or ""), "after": "", "sample": "", **changes,
        }  # fmt: skip
        query = urlencode({name: value for name, value in values.items() if value})
        return f"{self.path}{part}?{query}" if query else f"{self.path}{part}"


def view_of(visit: Visit) -> CompletionsView:
    """Return the view; a parameter with a wrong value counts as missing. If the address has no
    step, the step comes from the id of the open completion."""
    opened = _SAMPLE.fullmatch(visit.query("sample"))
    step = _count(visit.query("step"))
    ending = visit.query("finish_reason")
    return CompletionsView(
        job_id=visit.param("job_id"),
        step=int(opened[1]) if opened and step is None else step,
        came_from=_count(visit.query("was")),
        reward_lt=_typed(visit.query("reward_lt")),
        reward_gt=_typed(visit.query("reward_gt")),
        ending=ending if ending in ENDINGS else "",
        ungraded=visit.query("ungraded") == "1",
        text=visit.query("q").strip()[:_MAX_TEXT],
        all_steps=visit.query("all") == "1",
        row=_count(visit.query("row")),
        place=_count(visit.query("place")) or 0,
        after=visit.query("after")[:_MAX_TEXT],
        sample=opened[0] if opened else "",
    )


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _typed(text: str) -> str:
    text = text.strip()[:30]
    return text if _number(text) is not None else ""


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
