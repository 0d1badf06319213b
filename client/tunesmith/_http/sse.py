"""Server-sent events, the parsing half of https://html.spec.whatwg.org/#server-sent-events.

Works on bytes: httpx's iter_lines() also splits at U+2028 and the like, which JSON may hold raw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# A CR at the end of what has arrived may be half of a CRLF: it waits for the next chunk.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\n|\Z)")


@dataclass(frozen=True, kw_only=True)
class ServerSentEvent:
    event: str
    data: str
    id: str


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Complete lines without their ends; an unfinished last one is dropped, as the spec says."""
    rest = b""
    first = True
    for chunk in chunks:
        *complete, rest = _LINE_END.split(rest + chunk)
        for line in complete:
            text = line.decode("utf-8", errors="replace")
            yield text.removeprefix("\ufeff") if first else text
            first = False


def events(source: Iterable[str]) -> Iterator[ServerSentEvent | None]:
    """One item a line, None unless the line completes an event, so that heartbeats are seen."""
    event, data, last_id = "", list[str](), ""
    for line in source:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                event = value
            elif name == "data":
                data.append(value)
            elif name == "id" and "\0" not in value:
                last_id = value
            yield None
            continue
        complete = ServerSentEvent(event=event or "message", data="\n".join(data), id=last_id)
        yield complete if data else None
        event, data = "", []
