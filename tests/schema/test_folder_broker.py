"""File-system broker: readers see complete messages only, and a damaged file ends no worker."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.transport import filesystem

from tunesmith_schema import folder_broker
from tunesmith_schema.queue import TRAIN_QUEUE, celery_broker

MESSAGES = 200


def connect(folder: Path) -> Any:  # Any: kombu is not typed
    settings = celery_broker(f"filesystem://{folder}")
    return kombu.Connection(
        settings["broker_url"],
        transport=settings["broker_transport"],
        transport_options=settings["broker_transport_options"],
    )


def take(folder: Path, wanted: int) -> list[int]:
    """Return the bodies of up to `wanted` messages."""
    found: list[int] = []
    with connect(folder) as connection, connection.SimpleQueue(TRAIN_QUEUE) as queue:
        while len(found) < wanted:
            try:
                message = queue.get(timeout=2)
            except queue.Empty:
                break
            found.append(message.payload)
            message.ack()
    return found


def test_a_reader_beside_writers_gets_every_message(tmp_path: Path) -> None:
    def send(numbers: range) -> None:
        with connect(tmp_path) as connection, connection.SimpleQueue(TRAIN_QUEUE) as queue:
            for number in numbers:
                queue.put(number)

    threads = [
        threading.Thread(target=send, args=(range(first, MESSAGES, 2),)) for first in range(2)
    ]
    for thread in threads:
        thread.start()
    found = take(tmp_path, MESSAGES)
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(MESSAGES))


@pytest.mark.parametrize("file", ["message", "table"])
def test_a_file_is_complete_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Every file that a reader can find is valid JSON at each moment of a write."""
    pattern = "*.msg" if file == "message" else "control/*.exchange"
    seen: list[str] = []

    def dumps(value: object) -> str:
        seen.extend(path.read_text() for path in tmp_path.glob(pattern))
        return json.dumps(value)

    def opened(path: Path, text: str) -> int:
        seen.extend(found.read_text() for found in tmp_path.glob(pattern))
        with path.open("w") as stream:
            written = stream.write(text[: len(text) // 2])
            stream.flush()
            seen.extend(found.read_text() for found in tmp_path.glob(pattern))
            return written + stream.write(text[len(text) // 2 :])

    monkeypatch.setattr(folder_broker, "dumps", dumps)
    monkeypatch.setattr(Path, "write_text", opened)
    with connect(tmp_path) as connection, connection.SimpleQueue(TRAIN_QUEUE) as queue:
        queue.put(1)
        queue.put(2)
    assert seen
    assert all(json.loads(text) for text in seen)
    assert sorted(take(tmp_path, 2)) == [1, 2]


def test_damaged_files_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with connect(tmp_path) as connection, connection.SimpleQueue(TRAIN_QUEUE) as queue:
        (tmp_path / f"0_damaged.{TRAIN_QUEUE}.msg").write_text("")
        queue.put(1)
    assert take(tmp_path, 1) == [1]
    assert f"message of queue {TRAIN_QUEUE} dropped" in caplog.text
    [table] = (tmp_path / "control").glob("*.exchange")
    table.write_text("[")
    assert take(tmp_path, 0) == []
    assert json.loads(table.read_text())


def test_kombus_own_transport_reads_half_a_message(tmp_path: Path) -> None:
    """The reason for this transport. If this test fails, kombu's own class will do."""
    (tmp_path / f"0_half.{TRAIN_QUEUE}.msg").write_text("")
    (tmp_path / "control").mkdir()
    options = celery_broker(f"filesystem://{tmp_path}")["broker_transport_options"]
    connection = kombu.Connection("filesystem://", transport_options=options)
    with (
        connection,
        connection.SimpleQueue(TRAIN_QUEUE) as queue,
        pytest.raises(ValueError, match="Expecting value"),
    ):
        queue.get(timeout=1)
    assert issubclass(folder_broker.Transport, filesystem.Transport)
