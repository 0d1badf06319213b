"""The event stream format, as the WHATWG defines it."""

from __future__ import annotations

import pytest

from tunesmith._http.sse import ServerSentEvent, events, lines


def parsed(*chunks: bytes) -> list[ServerSentEvent]:
    return [message for message in events(lines(chunks)) if message is not None]


def sent(data: str, event: str = "message", id: str = "") -> ServerSentEvent:
    return ServerSentEvent(event=event, data=data, id=id)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [sent("a")]),
        (b"data:a\n\n", [sent("a")]),
        (b"data:  a\n\n", [sent(" a")]),
        (b"data: a\ndata: b\n\n", [sent("a\nb")]),
        (b"data: a\r\n\r\ndata: b\r\rx\n", [sent("a"), sent("b")]),
        (b"id: 3\nevent: event\ndata: a\n\n", [sent("a", "event", "3")]),
        (b"id: 3\ndata: a\n\ndata: b\n\n", [sent("a", id="3"), sent("b", id="3")]),
        (b"event: x\n\ndata: a\n\n", [sent("a")]),
        (b": ping\n\ndata: a\n: ping\n\n", [sent("a")]),
        (b"data\n\n", [sent("")]),
        (b"unknown: 1\ndata: a\n\n", [sent("a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [sent("a")]),
        (b"data: a\n\ndata: cut o", [sent("a")]),
        (b"data: a\n\ndata: cut off\n", [sent("a")]),
    ],
)
def test_a_stream_is_read_as_the_standard_says(
    stream: bytes, expected: list[ServerSentEvent]
) -> None:
    assert parsed(stream) == expected
    assert parsed(*(stream[n : n + 1] for n in range(len(stream)))) == expected


def test_a_line_separator_inside_json_is_no_line_end() -> None:
    assert parsed('data: {"message":"a\u2028b\x85c"}\n\n'.encode()) == [
        sent('{"message":"a\u2028b\x85c"}')
    ]


def test_heartbeats_are_yielded_as_none() -> None:
    assert list(events(lines([b": ping\n\n"]))) == [None, None]
