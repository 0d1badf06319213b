"""Tokenised files are kept by content: taken again, made again when damaged, and forgotten."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, losses, read_events
from tunesmith_schema import EventKind
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.paths import KEEP_SECONDS
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.trainer.data.token_cache import TokenCache, tokens_key
from tunesmith_worker.trainer.data.tokens import TokenizedRows, tokenize_file
from tunesmith_worker.trainer.run import main

PLAN = DataPlan(max_seq_length=256, overlong="drop", assistant_only_loss=True, packing=False)
Tokenizer = Any  # Any: transformers is untyped


def data_file(folder: Path, name: str = "train.jsonl", *, rows: int = 16) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS[:rows]), encoding="utf-8")
    return path


class Host:
    """A cache, and what was said while it was used."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder / "cache"
        self.scratch = folder / "run"
        self.scratch.mkdir(exist_ok=True)
        self.cache = TokenCache(self.folder, **settings)
        self.told: list[str] = []
        self.warned: list[str] = []

    def tokens(self, path: Path, **plan: Any) -> TokenizedRows:
        return tokenize_file(
            path,
            make_tiny_tokenizer(),
            DataPlan(**{**vars(PLAN), **plan}),
            vocabulary=999,
            cache=self.cache,
            scratch=self.scratch,
            processes=1,
            report=self.told.append,
            warn=self.warned.append,
        )

    def entries(self) -> list[Path]:
        return sorted(self.folder.iterdir(), key=lambda folder: folder.stat().st_mtime)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_second_run_takes_what_the_first_one_made(host: Host, tmp_path: Path) -> None:
    made = host.tokens(data_file(tmp_path))
    taken = host.tokens(data_file(tmp_path, "another-name.jsonl"))
    assert "tokenised by 1 process in" in host.told[0]
    assert "another-name.jsonl: read from the cache in" in host.told[1]
    assert taken.dataset.to_list() == made.dataset.to_list()
    assert (taken.counts, taken.first) == (made.counts, made.first)
    assert host.warned == []
    assert list(host.scratch.iterdir()) == []
    assert stat.S_IMODE(host.folder.stat().st_mode) == 0o700


def add_token(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens(["Paris"])


def add_special(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<x>")]})


def set_eos(tokenizer: Tokenizer) -> None:
    tokenizer.eos_token = "</s>"


def set_template(tokenizer: Tokenizer) -> None:
    tokenizer.chat_template += " "


def split_special(tokenizer: Tokenizer) -> None:
    tokenizer.split_special_tokens = True


def set_normalizer(tokenizer: Tokenizer) -> None:
    from tokenizers.normalizers import Lowercase

    tokenizer.backend_tokenizer.normalizer = Lowercase()


@pytest.mark.parametrize(
    "change", [add_token, add_special, set_eos, set_template, split_special, set_normalizer]
)
def test_every_part_of_a_tokenizer_is_in_the_key(
    tmp_path: Path, change: Callable[[Tokenizer], None]
) -> None:
    path, tokenizer = data_file(tmp_path), make_tiny_tokenizer()
    before = tokens_key(path, tokenizer, PLAN, vocabulary=999)
    tokenizer(["a", "b c"], padding=True, truncation=True, max_length=2)  # leaves nothing behind
    assert tokens_key(path, tokenizer, PLAN, vocabulary=999) == before
    change(tokenizer)
    assert tokens_key(path, tokenizer, PLAN, vocabulary=999) != before


def test_data_plan_and_vocabulary_are_in_the_key_and_packing_is_not(tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer()

    def key(path: Path, vocabulary: int = 999, **plan: Any) -> str:
        changed = DataPlan(**{**vars(PLAN), **plan})
        return tokens_key(path, tokenizer, changed, vocabulary=vocabulary)

    path = data_file(tmp_path)
    as_csv = path.with_suffix(".csv")
    shutil.copy(path, as_csv)
    keys = {
        key(path),
        key(as_csv),
        key(data_file(tmp_path, "fewer.jsonl", rows=15)),
        key(path, vocabulary=1000),
        key(path, max_seq_length=255),
        key(path, overlong="truncate"),
        key(path, assistant_only_loss=False),
    }
    assert len(keys) == 7
    assert key(path, packing=True) == key(path)


def test_a_template_that_writes_the_date_is_good_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain = data_file(tmp_path), make_tiny_tokenizer()
    dated = make_tiny_tokenizer(chat_template="{{ strftime_now('%d %b %Y') }}")
    before = [tokens_key(path, one, PLAN, vocabulary=999) for one in (plain, dated)]
    monkeypatch.setattr("time.strftime", lambda _: "2031-01-01")
    after = [tokens_key(path, one, PLAN, vocabulary=999) for one in (plain, dated)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False]


def flip_a_byte(entry: Path) -> None:
    content = bytearray((entry / "tokens.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (entry / "tokens.arrow").write_bytes(content)


def cut_short(entry: Path) -> None:
    os.truncate(entry / "tokens.arrow", 100)


def lose_the_tokens(entry: Path) -> None:
    (entry / "tokens.arrow").unlink()


def garble(entry: Path) -> None:
    (entry / "entry.json").write_text("{")


def other_counts(entry: Path) -> None:
    content = json.loads((entry / "entry.json").read_text())
    (entry / "entry.json").write_text(json.dumps({**content, "counts": {"pages": 3}}))


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, lose_the_tokens, garble, other_counts])
def test_a_damaged_entry_is_made_again_and_said(
    host: Host, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = data_file(tmp_path)
    expected = host.tokens(path).dataset.to_list()
    damage(host.entries()[0])
    assert host.tokens(path).dataset.to_list() == expected
    assert len(host.warned) == 1
    assert "are damaged" in host.warned[0]
    host.tokens(path)
    assert ["read from" in told for told in host.told] == [False, False, True]


def test_what_was_used_least_recently_makes_room(tmp_path: Path) -> None:
    host = Host(tmp_path)
    paths = [data_file(tmp_path, f"{rows}.jsonl", rows=rows) for rows in (10, 11, 12)]
    for age, path in zip((300, 200), paths, strict=False):
        before = set(host.folder.iterdir())
        host.tokens(path)
        (entry,) = set(host.folder.iterdir()) - before
        os.utime(entry, (time.time() - age,) * 2)
    size = sum(file.stat().st_size for file in host.folder.rglob("*") if file.is_file())
    host.tokens(paths[0])  # used again: now the other one is the oldest
    small = Host(tmp_path, max_bytes=int(size * 1.2))
    kept = small.tokens(paths[2])
    for path in (paths[2], paths[0], paths[1]):
        small.tokens(path)
    assert ["read from" in told for told in small.told] == [False, True, True, False]
    assert len(kept.dataset[0]["input_ids"]) > 0

    none = Host(tmp_path, max_bytes=0)
    used = none.tokens(data_file(tmp_path, "new.jsonl", rows=9))
    assert none.entries() == []
    assert used.dataset.to_list() == none.tokens(tmp_path / "new.jsonl").dataset.to_list()


def test_what_nobody_used_for_long_goes_at_the_next_run(host: Host, tmp_path: Path) -> None:
    host.tokens(data_file(tmp_path))
    past = time.time() - KEEP_SECONDS - 60
    (entry,) = host.entries()
    for path in (*entry.iterdir(), entry):
        os.utime(path, (past, past))
    host.tokens(data_file(tmp_path, "other.jsonl", rows=3))
    assert entry not in host.entries()
    assert len(host.entries()) == 1


def test_what_is_no_entry_is_let_be(host: Host, tmp_path: Path) -> None:
    path = data_file(tmp_path)
    (host.folder / "notes.txt").write_text("a stray file")
    host.tokens(path)
    host.tokens(path)
    assert ["read from" in told for told in host.told] == [False, True]
    assert (host.folder / "notes.txt").read_text() == "a stray file"


def test_two_workers_that_make_the_same_tokens_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finishes, entry and all, while the first is still at it."""
    path, first, second = data_file(tmp_path), Host(tmp_path), Host(tmp_path)
    keep = TokenCache.keep

    def overtaken(cache: TokenCache, *arguments: Any) -> None:
        monkeypatch.setattr(TokenCache, "keep", keep)
        second.tokens(path)
        keep(cache, *arguments)

    monkeypatch.setattr(TokenCache, "keep", overtaken)
    rows = first.tokens(path).dataset.to_list()
    assert rows == second.tokens(path).dataset.to_list()
    assert ["read from" in told for told in first.told + second.told] == [False, False, True]
    assert first.warned + second.warned == []
    assert len(first.entries()) == 1
    assert list(first.scratch.iterdir()) == []


def test_a_file_that_cannot_be_trained_on_leaves_nothing(host: Host, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="all 16 rows are longer"):
        host.tokens(data_file(tmp_path), max_seq_length=4)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(RunError, match=r"empty\.jsonl has no rows"):
        host.tokens(empty)
    assert host.entries() == []
    assert list(host.scratch.iterdir()) == []


def test_runs_share_the_cache_their_supervisor_names(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESMITH_TOKEN_CACHE", str(tmp_path / "cache"))
    runs = [make_run(QUESTIONS, recipe={"max_steps": 2}, name=name) for name in ("one", "two")]
    assert [main(run) for run in runs] == [0, 0]
    said = [
        next(event.message for event in read_events(run) if event.kind == EventKind.MESSAGE)
        for run in runs
    ]
    assert [text.rpartition(" in ")[0] for text in said] == [
        "train.jsonl: tokenised by 1 process",
        "train.jsonl: read from the cache",
    ]
    assert losses(runs[0]) == losses(runs[1])
    assert sorted(path.name for path in runs[0].iterdir()) == sorted(
        path.name for path in runs[1].iterdir()
    )
