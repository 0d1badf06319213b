"""`tunesmith chat`: one question from standard input, and conversations in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tunesmith.cli import app

TUNED = "ft:tiny:default::1"


class Models(BaseHTTPRequestHandler):
    """Server with `tiny` and a model tuned from it; an answer names the model and the messages."""

    protocol_version = "HTTP/1.0"
    server: Any  # it has `seen`

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2].replace("%3A", ":")
        if name not in ("tiny", TUNED):
            self.send(404, json.dumps({"error": {"message": f"no model {name!r}", "type": "t"}}))
            return
        base = {"base_model": "tiny"} if name == TUNED else {}
        self.send(200, json.dumps({"id": name, "created": 1, "owned_by": "x", **base}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append(body)
        question = body["messages"][-1]["content"]
        self.send(200, "")
        roles = ",".join(message["role"][0] for message in body["messages"])
        self.part(f"{body['model']} got {roles}: ")
        if question == "break":
            self.wfile.write(b'data: {"error": {"message": "out of luck", "type": "t"}}\n\n')
            return
        while question == "slow":
            try:
                self.part("and ")
            except OSError:
                self.server.seen.append("closed")
                return
            time.sleep(0.05)
        self.part(f"{question}\x1b[2J", "length" if question == "long" else "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def part(self, text: str, finish: str | None = None) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        chunk = {"id": "c", "created": 1, "model": "m", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server() -> Iterator[Any]:
    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    running.seen = []
    thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def environment(server: Any) -> dict[str, str]:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    # pytest-xdist sets COLUMNS, which hides the size of the terminal.
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**inherited, "TUNESMITH_BASE_URL": url, "TUNESMITH_API_KEY": "k", "TERM": "xterm"}


def chat(server: Any, *arguments: str, question: str) -> Result:
    return CliRunner().invoke(
        app, ["chat", *arguments], input=question, env=environment(server), catch_exceptions=False
    )


def _take_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background ignores it
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches the program


class Terminal:
    """`tunesmith chat` in a pseudo-terminal."""

    def __init__(self, server: Any, *arguments: str, columns: int = 80) -> None:
        self._end, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith.cli", "chat", *arguments],
            env=environment(server), stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(terminal)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def until(self, pattern: str, seconds: float = 30) -> str:
        """Wait for output that matches; return all output up to then and drop it."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown, re.DOTALL)):
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.shown!r}"
            if select.select([self._end], [], [], left)[0]:
                try:
                    self.shown += os.read(self._end, 65536).decode(errors="replace")
                except OSError:  # the program has ended
                    assert re.search(pattern, self.shown, re.DOTALL), self.shown
        text, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return text

    def wait(self) -> int:
        while True:
            try:
                if not os.read(self._end, 65536):
                    break
            except OSError:
                break
        return self._process.wait(30)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._end)


def test_one_question_from_standard_input(server: Any) -> None:
    done = chat(server, "tiny", "--system", "be kind", question="hello\nyou\n")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "tiny got s,u: hello\nyou\N{REPLACEMENT CHARACTER}[2J\n"
    assert server.seen[0]["messages"][0] == {"role": "system", "content": "be kind"}
    assert "temperature" not in server.seen[0]

    both = chat(server, TUNED, "--against", "base", question="long")
    assert both.exit_code == 0, both.stderr
    assert f"== {TUNED}\n{TUNED} got u: long" in both.stdout
    assert "== tiny\ntiny got u: long" in both.stdout
    assert "cut off" in both.stdout


def test_parameters_of_the_sampling_are_sent_to_both_models(server: Any) -> None:
    options = ("--temperature", "0.5", "--top-p", "0.9", "--max-tokens", "7", "--seed", "3")
    result = chat(server, TUNED, "--against", "base", *options, question="hello")
    assert result.exit_code == 0, result.output
    for body in server.seen:
        names = ("temperature", "top_p", "max_tokens", "seed")
        assert [body[name] for name in names] == [0.5, 0.9, 7, 3]
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("arguments", "question", "status", "words"),
    [
        (["none"], "a", 1, "no model 'none'"),
        (["tiny", "--against", "none"], "a", 1, "no model 'none'"),
        (["tiny", "--against", "base"], "a", 2, "tunesmith models list"),
        (["tiny"], " \n", 2, "standard input is empty"),
        (["tiny"], "break", 1, "error: out of luck"),
    ],
)
def test_errors_name_the_remedy(
    server: Any, arguments: list[str], question: str, status: int, words: str
) -> None:
    done = chat(server, *arguments, question=question)
    assert done.exit_code == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_conversation_in_a_terminal(server: Any) -> None:
    terminal = Terminal(server, "tiny")
    try:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until("tiny got u: one.*> ")
        terminal.type("two\n")
        terminal.until("tiny got u,a,u: two.*> ")
        terminal.type("break\n")
        terminal.until("error: out of luck.*> ")
        terminal.type("slow\n")
        terminal.until("and and and")
        terminal.type("\x03")
        terminal.until(r"\(stopped\).*> ")
        terminal.type("three\n")
        terminal.until("tiny got u,a,u,a,u,a,u: three.*> ")
        deadline = time.monotonic() + 10
        while "closed" not in server.seen:
            assert time.monotonic() < deadline, "the generation was not stopped"
            time.sleep(0.05)
        terminal.type("\x03")
        terminal.until("Ctrl-D or /quit ends the chat.*> ")
        terminal.type("/quit\n")
        assert terminal.wait() == 0
    finally:
        terminal.close()


@pytest.mark.parametrize(("columns", "same_line"), [(120, True), (80, False)])
def test_two_models_side_by_side(server: Any, columns: int, same_line: bool) -> None:
    terminal = Terminal(server, TUNED, "--against", "base", columns=columns)
    try:
        terminal.until("> ")
        terminal.type("one\n")
        shown = terminal.until("tiny got u: one.*> ")
        together = any(f"{TUNED} got u" in line and " tiny got u" in line
                       for line in shown.splitlines())  # fmt: skip
        assert together == same_line, shown
        terminal.type("slow\n")
        time.sleep(0.5)
        terminal.type("\x03")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.wait() == 0
    finally:
        terminal.close()
