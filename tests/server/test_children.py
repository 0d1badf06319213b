"""Child processes: restarted after a crash with growing delays, and stopped in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunesmith_server import children as module
from tunesmith_server.children import Child, stop_all

SLEEP = "import time; time.sleep(60)"
Make = Callable[..., Child]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Child] = []

    def new(code: str = SLEEP, name: str = "child", **options: float) -> Child:
        child = Child(
            name=name,
            command=[sys.executable, "-S", "-c", code],
            env=dict(os.environ),
            log_file=tmp_path / f"{name}.log",
            **options,  # type: ignore[arg-type]  # only numbers are passed
        )
        made.append(child)
        return child

    yield new
    for child in made:
        child.kill()


def until(what: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def crash(child: Child) -> None:
    assert child.process is not None
    child.process.kill()
    child.process.wait()


def test_a_child_writes_into_its_log(make: Make) -> None:
    child = make("import sys; print('out'); print('err', file=sys.stderr)")
    child.start()
    assert child.process is not None
    child.process.wait(10)
    assert sorted(child.log_file.read_text().split()) == ["err", "out"]


def test_a_crashed_child_is_restarted_at_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    child = make()
    child.start()
    crash(child)
    child.restart_if_ended()
    child.restart_if_ended()
    assert child.process is not None
    assert child.process.poll() is None
    assert "ended with status -9" in caplog.text


def test_a_running_child_is_left_alone(make: Make) -> None:
    child = make()
    child.start()
    process = child.process
    child.restart_if_ended()
    assert child.process is process


def test_a_child_that_keeps_crashing_is_restarted_ever_more_slowly(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(
        "tunesmith_server.children.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    child, delays = make(), []
    child.start()
    for _ in range(8):
        crash(child)
        child.restart_if_ended()
        delays.append(child.restart_at - clock[0])
        clock[0] += delays[-1] - 0.01
        child.restart_if_ended()
        assert child.process is None or delays[-1] == 0
        clock[0] += 0.02
        child.restart_if_ended()
        assert child.process is not None
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30]
    clock[0] += module.STABLE_SECONDS + 1
    crash(child)
    child.restart_if_ended()
    assert child.restart_at == clock[0], "it had become stable"


def test_children_stop_in_reverse_order(make: Make, tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def leave(*_):\n"
        "    with open({order!r}, 'a') as file: file.write({name!r})\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    family = [make(code.format(order=str(order), name=name), name) for name in "abc"]
    for child in family:
        child.start()
    until(lambda: all(child.log_file.read_text() for child in family))
    stop_all(family)
    assert order.read_text() == "cba"


def test_a_child_that_does_not_listen_is_killed(make: Make) -> None:
    child = make(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('up', flush=True); time.sleep(60)",
        stop_seconds=0.2,
    )
    child.start()
    until(lambda: child.log_file.read_text())
    stop_all([child])
    assert child.process is not None
    assert child.process.poll() == -signal.SIGKILL


def test_stopping_what_has_ended_or_never_started_is_harmless(make: Make) -> None:
    ended, never = make("pass", "ended"), make(SLEEP, "never")
    ended.start()
    assert ended.process is not None
    ended.process.wait(10)
    stop_all([ended, never])


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("PR_SET_PDEATHSIG is Linux's")
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from tunesmith_server.children import Child\n"
        f"child = Child(name='c', command=[sys.executable, '-S', '-c', {SLEEP!r}],"
        f" env=dict(os.environ), log_file=Path({str(tmp_path / 'c.log')!r}))\n"
        "child.start(); print(child.process.pid, flush=True); time.sleep(60)\n"
    )
    parent = Child(
        name="parent",
        command=[sys.executable, "-c", code],
        env=dict(os.environ),
        log_file=tmp_path / "parent.log",
    )
    parent.start()
    until(lambda: parent.log_file.read_text().strip())
    grandchild = int(parent.log_file.read_text())
    crash(parent)
    until(lambda: not _alive(grandchild))


def test_a_log_that_grew_is_put_aside(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOG_BYTES", 10)
    child = make("pass")
    child.log_file.write_text("x" * 11)
    child.start()
    assert child.log_file.with_suffix(".log.1").read_text() == "x" * 11
    assert child.log_file.read_text() == ""


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
