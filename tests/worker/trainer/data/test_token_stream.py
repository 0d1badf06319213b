"""However many processes tokenise a file, what comes out is the same; and none outlives the run."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny_model import make_tiny_tokenizer
from tunesmith_schema import EXIT_STOPPED
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.trainer.data import chunks, token_stream
from tunesmith_worker.trainer.data.chunks import Chunk, read_chunks
from tunesmith_worker.trainer.data.examples import Counts
from tunesmith_worker.trainer.data.rows import read_rows
from tunesmith_worker.trainer.data.token_stream import TokenStream, Work
from tunesmith_worker.trainer.data.tokens import tokenize_rows

from . import templates

Record = dict[str, Any]  # Any: JSON
WORDS = [
    "five",
    "\u00e9\u65e5",
    "<|im_end|>",
    "\n\n",
    "a b",
    '"',
    "\\",
    "\U0001f600",
    "{{ x }}",
    ",",
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MAX_ROWS", 7)


def work(template: str | None = templates.QWEN3, **plan: Any) -> Work:
    usual = {"max_seq_length": 90, "overlong": "truncate", "assistant_only_loss": True}
    tokenizer = make_tiny_tokenizer(**({"chat_template": template} if template else {}))
    return Work(
        tokenizer=tokenizer,
        plan=DataPlan(**{**usual, "packing": False, **plan}),
        name="train",
        vocabulary=len(tokenizer),
    )


def text(draw: random.Random) -> str:
    return "x" + " ".join(draw.choice(WORDS) for _ in range(draw.randint(0, 12)))


def chat(draw: random.Random) -> Record:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1.50, "b": null}'}}
    turns: list[Record] = []
    for _ in range(draw.randint(1, 3)):
        turns += [{"role": "user", "content": text(draw)}]
        turns += [{"role": "assistant", "content": text(draw), "weight": draw.choice([0, 1, 1])}]
    if draw.random() < 0.3:
        turns += [{"role": "assistant", "content": text(draw), "tool_calls": [call]}]
        turns += [{"role": "tool", "content": "6"}]
    turns += [{"role": "user", "content": "a"}, {"role": "assistant", "content": text(draw)}]
    return {"messages": turns, **({"tools": [call]} if draw.random() < 0.3 else {})}


def prompt_completion(draw: random.Random) -> Record:
    if draw.random() < 0.5:
        return {"prompt": text(draw), "completion": text(draw)}
    asked, answered = (
        [{"role": "user", "content": "a"}],
        {"role": "assistant", "content": text(draw)},
    )
    return {"prompt": asked, "completion": [answered]}


def sharegpt(draw: random.Random) -> Record:
    turns = [{"from": "human", "value": text(draw)}, {"from": "gpt", "value": text(draw)}]
    return {"conversations": turns * draw.randint(1, 3)}


FORMATS: dict[str, Callable[[random.Random], Record]] = {
    "chat": chat,
    "prompt_completion": prompt_completion,
    "sharegpt": sharegpt,
    "alpaca": lambda draw: {"instruction": text(draw), "input": text(draw), "output": text(draw)},
    "question": lambda draw: {"question": text(draw), "answer": text(draw)},
    "text": lambda draw: {"text": text(draw)},
}
AS_TABLE = ("sharegpt", "alpaca", "question", "text")
"""Formats whose rows have columns of one type."""


def written(folder: Path, kind: str, rows: list[Record]) -> Path:
    path = folder / f"train.{kind}"
    if kind == "jsonl":
        lines = [json.dumps(row) + draw_blank(i) for i, row in enumerate(rows)]
        path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=11)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def draw_blank(index: int) -> str:
    return "\n \r" if index % 10 == 0 else ""


def cases() -> Iterator[tuple[str, str]]:
    for name in FORMATS:
        yield name, "jsonl"
        yield name, "json"
        if name in AS_TABLE:
            yield name, "parquet"
            if name != "sharegpt":
                yield name, "csv"


def streamed(one: Work, path: Path, processes: int) -> tuple[list[Any], Counts, int]:
    """Rows, counts and how many processes took part."""
    counts, batches = Counts(), []
    with TokenStream(
        one, processes=processes, helpers_min_seconds=-1.0, warn=pytest.fail
    ) as stream:
        for batch, of_batch in stream.results(read_chunks(path)):
            batches.append(batch)
            counts.add(of_batch)
    return pa.Table.from_batches(batches).to_pylist(), counts, stream.processes


def in_memory(one: Work, path: Path) -> tuple[list[Any], Counts]:
    rows = read_rows(path).rows
    tokens = tokenize_rows(rows, one.tokenizer, one.plan, name="train", vocabulary=one.vocabulary)
    numbers = tokens.rows.to_pylist()
    examples = zip(tokens.dataset.to_list(), numbers, strict=True)
    return [example | {"row": number} for example, number in examples], tokens.counts


@pytest.mark.parametrize(("format", "kind"), list(cases()))
def test_chunks_give_what_the_whole_file_gives(tmp_path: Path, format: str, kind: str) -> None:
    draw = random.Random(f"{format} {kind}")
    path = written(tmp_path, kind, [FORMATS[format](draw) for _ in range(60)])
    for one in (work(), work(overlong="drop"), work(templates.LLAMA3, assistant_only_loss=False)):
        rows, counts, _ = streamed(one, path, processes=1)
        assert (rows, counts) == in_memory(one, path)


@pytest.mark.parametrize(
    ("format", "kind", "processes"),
    [("chat", "jsonl", 3), ("sharegpt", "parquet", 2)],
)
def test_helpers_give_what_the_trainer_alone_gives(
    tmp_path: Path, format: str, kind: str, processes: int
) -> None:
    draw = random.Random(processes)
    path = written(tmp_path, kind, [FORMATS[format](draw) for _ in range(90)])
    rows, counts, took_part = streamed(work(), path, processes)
    assert took_part == processes
    assert (rows, counts) == in_memory(work(), path)


def test_an_error_is_the_same_whoever_meets_it_first(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": f"five {i}"} for i in range(60)]
    long: Record = {"question": "a", "answer": "x " * 90}
    refusing = "{{ raise_exception('no ' ~ messages[0].content) if messages|length > 3 }}x"
    many = {"messages": [{"role": role, "content": "b"} for role in ("user", "assistant") * 2]}
    cases = [
        ([*rows[:40], long, *rows, {"text": "another format"}], work(overlong="error")),
        ([chat(random.Random(1))] * 40 + [many, {"messages": []}], work(refusing)),
    ]
    for lines, one in cases:
        path = written(tmp_path, "jsonl", lines)
        failures = []
        for processes in (1, 2):
            with pytest.raises(RunError) as caught:
                streamed(one, path, processes)
            failures.append(caught.value.failure)
        assert failures[0] == failures[1]
        assert "row" in failures[0].message


def test_a_file_cut_short_names_the_row(tmp_path: Path) -> None:
    path = written(tmp_path, "csv", [{"text": "a"}] * 20)
    path.write_text(path.read_text() + 'b,"c"\n')
    with pytest.raises(RunError, match=r"row 21: has 2 columns, the header has 1"):
        streamed(work(), path, 1)


def done_with_helpers(
    path: Path, befalls: Callable[[psutil.Process], None]
) -> tuple[tuple[list[Any], Counts], list[str]]:
    """Return the rows and warnings of a stream whose helpers are each passed to `befalls`."""
    before = set(psutil.Process().children())
    warnings: list[str] = []
    batches, counts = [], Counts()
    with TokenStream(work(), processes=2, helpers_min_seconds=-1.0, warn=warnings.append) as stream:
        for batch, of_batch in stream.results(read_chunks(path)):
            for helper in set(psutil.Process().children()) - before:
                befalls(helper)
            batches.append(batch)
            counts.add(of_batch)
    return (pa.Table.from_batches(batches).to_pylist(), counts), warnings


def test_what_a_killed_helper_left_undone_is_done_by_the_trainer(tmp_path: Path) -> None:
    draw = random.Random(3)
    path = written(tmp_path, "jsonl", [chat(draw) for _ in range(120)])
    found, warnings = done_with_helpers(path, psutil.Process.kill)
    assert found == in_memory(work(), path)
    assert warnings == [
        "train: a tokenising helper process ended with signal 9; the trainer does the helper's work"
    ]


def test_a_helper_that_answers_nonsense_is_done_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nonsense(*_: object) -> None:
        raise ValueError("not JSON")

    monkeypatch.setattr("tunesmith_worker.trainer.data.token_stream.request_tokens", nonsense)
    path = written(tmp_path, "jsonl", [{"text": "a"}] * 50)
    counts, warnings = Counts(), list[str]()
    with TokenStream(work(), processes=2, helpers_min_seconds=-1.0, warn=warnings.append) as stream:
        for _, of_batch in stream.results(read_chunks(path)):
            counts.add(of_batch)
    assert counts.rows == 50
    assert len(warnings) == 1
    assert "ended with signal 9" in warnings[0]


def test_a_helper_that_hangs_is_killed_and_its_part_done_by_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before the time that the trainer's own pace allows it, here more than the least."""
    do, give_up, silent = Work.tokenize, token_stream._Helper.give_up, list[float]()

    def slow(self: Work, chunk: Chunk) -> token_stream.Result:
        time.sleep(0.03)
        return do(self, chunk)

    def told(self: token_stream._Helper) -> None:
        silent.append(self.silent)
        give_up(self)

    monkeypatch.setattr(Work, "tokenize", slow)
    monkeypatch.setattr(token_stream._Helper, "give_up", told)
    monkeypatch.setattr(token_stream, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(token_stream, "_POLL_SECONDS", 0.1)
    path = written(tmp_path, "jsonl", [{"text": f"a {i}"} for i in range(60)])
    before = set(psutil.Process().children())
    found, warnings = done_with_helpers(path, psutil.Process.suspend)
    assert found == in_memory(work(), path)
    assert warnings == [
        "train: a tokenising helper process did not reply and was killed; "
        "the trainer does the helper's work"
    ]
    assert [seconds >= 20 * 0.03 for seconds in silent] == [True]
    assert set(psutil.Process().children()) == before


def test_a_tokenizer_that_cannot_be_saved_is_used_by_the_trainer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsaved(*_: object, **__: object) -> None:
        raise NotImplementedError("no slow tokenizer")

    one, warnings = work(), list[str]()
    monkeypatch.setattr(one.tokenizer, "save_pretrained", unsaved)
    path = written(tmp_path, "jsonl", [{"text": "a"}] * 20)
    with TokenStream(one, processes=3, helpers_min_seconds=-1.0, warn=warnings.append) as stream:
        assert sum(batch.num_rows for batch, _ in stream.results(read_chunks(path))) == 20
        assert stream.processes == 1
    assert warnings == [
        "train: tokenised by only 1 process: NotImplementedError: no slow tokenizer"
    ]


def test_no_helper_outlives_its_stream(tmp_path: Path) -> None:
    path = written(tmp_path, "jsonl", [{"text": "a"}] * 50)
    before = set(psutil.Process().children())
    with TokenStream(work(), processes=2, helpers_min_seconds=-1.0, warn=pytest.fail) as stream:
        results = stream.results(read_chunks(path))
        assert next(results)[0].num_rows + next(results)[0].num_rows > 0
        assert len(set(psutil.Process().children()) - before) == 1
    assert set(psutil.Process().children()) == before


TRAINER = """
import sys, time
from pathlib import Path
sys.modules["torch"] = None
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.trainer.data.chunks import read_chunks
from tunesmith_worker.trainer.data.token_stream import TokenStream, Work
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan import DataPlan
from tests.tiny_model import make_tiny_tokenizer

folder = Path(sys.argv[1])
StopControl(RunDirectory(folder), before_exit=lambda: None)
plan = DataPlan(max_seq_length=9, overlong="drop", assistant_only_loss=True, packing=False)
work = Work(tokenizer=make_tiny_tokenizer(), plan=plan, name="train", vocabulary=999)
stream = TokenStream(work, processes=2, helpers_min_seconds=-1.0, warn=print)
results = stream.results(chunk for _ in range(99) for chunk in read_chunks(folder / "train.jsonl"))
print(next(results) and next(results) and "tokenising", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, EXIT_STOPPED), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_helpers_end_with_the_trainer(tmp_path: Path, number: signal.Signals, status: int) -> None:
    written(tmp_path, "jsonl", [{"text": "a"}] * 50)
    command = [sys.executable, "-c", TRAINER, str(tmp_path)]
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "tokenising\n"
        (helper,) = psutil.Process(trainer.pid).children()
        trainer.send_signal(number)
        assert trainer.wait(10) == status
        deadline = time.monotonic() + 10
        while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the helper is an orphan"
            time.sleep(0.02)
