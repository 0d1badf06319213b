"""Parser of server-sent events: https://html.spec.whatwg.org/#server-sent-events.

The parser works on bytes, because httpx's iter_lines() also splits at U+2028, which a JSON string
may contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# A CR at the end of a chunk does not end a line yet, because the next chunk may start with LF.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\n|\Z)")


@dataclass(frozen=True, kw_only=True)
class ServerSentEvent:
    event: str
    data: str
    id: str


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield lines without line ends. An incomplete last line is dropped, because the SSE standard
    requires this."""
    rest = b""
    first = True
    for chunk in chunks:
        *complete, rest = _LINE_END.split(rest + chunk)
        for line in complete:
            text = line.decode("utf-8", errors="replace")
            yield text.removeprefix("\ufeff") if first else text
            first = False


def events(source: Iterable[str]) -> Iterator[ServerSentEvent | None]:
    """Yield an event for each line that completes an event, and None for every other line."""
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
