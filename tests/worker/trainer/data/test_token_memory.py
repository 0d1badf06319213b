"""Tokenising a file takes the same memory however long the file is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
MIB = 2**20

PEAK = """
import re, sys, tempfile
sys.modules["torch"] = None
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from tunesmith_worker.trainer.data.chunks import read_chunks
from tunesmith_worker.trainer.data.examples import Counts
from tunesmith_worker.trainer.data.examples import tokenize
from tunesmith_worker.trainer.data.rows import read_rows
from tunesmith_worker.trainer.data.token_cache import TokensWriter
from tunesmith_worker.trainer.data.token_stream import TokenStream, Work
from tunesmith_worker.rundir.plan import DataPlan

# Quick, and with more ids to keep than most: a token for every four bytes.
words = Tokenizer(models.WordLevel({"[UNK]": 0, "abc": 1}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
plan = DataPlan(max_seq_length=10**6, overlong="drop", assistant_only_loss=True, packing=False)
path, counts = Path(sys.argv[1]), Counts()

if sys.argv[2] == "streamed":
    work = Work(tokenizer=tokenizer, plan=plan, name="x", vocabulary=9)
    folder = Path(tempfile.mkdtemp(dir=path.parent))
    with TokenStream(work, processes=1, warn=print) as stream, TokensWriter(folder) as writer:
        for batch, of_batch in stream.results(read_chunks(path)):
            writer.add(batch)
            counts.add(of_batch)
        kept = writer.finish(counts)
else:
    kept, counts = tokenize(read_rows(path).rows, tokenizer, plan, name="x", vocabulary=9)
# Not ru_maxrss, which begins with what the parent had when it forked.
high = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(int(high) * 1024, counts.tokens)
"""


def peak(path: Path, how: str) -> tuple[int, int]:
    """Bytes of memory at the highest, and tokens."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), how], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    most, tokens = done.stdout.split()
    return int(most), int(tokens)


def test_a_longer_file_takes_no_more_memory(tmp_path: Path) -> None:
    line = json.dumps({"text": "abc " * 500}) + "\n"
    short, long = tmp_path / "short.jsonl", tmp_path / "long.jsonl"
    short.write_text(line * (2 * MIB // len(line)))
    long.write_text(line * (8 * MIB // len(line)))
    (of_short, some), (of_long, many) = peak(short, "streamed"), peak(long, "streamed")
    assert many > 3.9 * some
    assert of_long - of_short < 24 * MIB
    # What that is worth: the plain way, all at once, takes far more.
    in_memory, as_many = peak(long, "plain")
    assert as_many == many
    assert in_memory - of_long > 100 * MIB
