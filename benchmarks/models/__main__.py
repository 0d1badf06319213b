"""Train a small model of every architecture and write docs/reference/models.md.

`python -m benchmarks.models` takes about half an hour on one core. `--only gpt2 bloom` measures
only the model types gpt2 and bloom, and replaces their rows in results/models.json. `--page` only
writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings

import torch
import transformers
from tests.tiny_model import make_tiny_tokenizer

from .configs import architectures
from .page import PAGE, RESULTS, page, read_rows
from .record import METHODS, record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=sorted(architectures()), metavar="TYPE")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--page", action="store_true", help="write the page without training")
    options = parser.parse_args()
    rows = {row["model_type"]: row for row in read_rows()}
    if not options.page:
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        tokenizer = make_tiny_tokenizer()
        for model_type, name in architectures().items():
            if options.only is None or model_type in options.only:
                row = record(model_type, name, tokenizer, tuple(options.methods))
                rows[model_type] = rows.get(model_type, {}) | row
                states = {m: row[m]["state"] for m in METHODS if m in row}
                print(model_type, states or row["not_built"], file=sys.stderr, flush=True)
                RESULTS.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n")
    PAGE.write_text(page(list(rows.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
