"""Evaluation on standard tasks by the program lm-eval, which sends its prompts to the server's
`/v1/completions`."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tunesmith._http.errors import InvalidArgumentError, TunesmithError
from tunesmith_schema import TaskResult, TaskResults

from .client import Client

_LIBRARIES = ("lm_eval", "aiohttp", "requests", "tenacity", "transformers")
_CONCURRENT = 8
"""Number of concurrent requests; the server computes them in one batch."""


def run_harness(
    client: Client,
    model: str,
    tasks: str,
    *,
    include_path: Path | None = None,
    limit: int | None = None,
) -> TaskResults:
    """Evaluate a model of the server on tasks of lm-eval, and return the results. `tasks`:
    comma-separated names. `include_path`: folder with more tasks. `limit`: maximum number of
    examples (documents) per task. lm-eval writes its progress on stderr. Raises
    InvalidArgumentError if lm-eval is not installed, and TunesmithError if lm-eval fails."""
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise InvalidArgumentError(
            f"--tasks needs {' and '.join(missing)}, which are not installed",
            hint="pip install 'tunesmith[eval]'",
        )
    with tempfile.TemporaryDirectory(prefix="tunesmith-eval-") as folder:
        command = [
            *(sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"),
            *("--model_args", _model_args(client, model, Path(folder) / "tokenizer")),
            *("--tasks", tasks, "--output_path", folder),
        ]
        if include_path is not None:
            command += ["--include_path", str(include_path.resolve())]
        if limit is not None:
            command += ["--limit", str(limit)]
        # Pass the key in the environment, because other users can read command lines.
        env = {**os.environ, "OPENAI_API_KEY": client.api_key}
        done = subprocess.run(command, env=env, stdout=sys.stderr, check=False)
        found = sorted(Path(folder).rglob("results_*.json"))
        if done.returncode or not found:
            raise TunesmithError(
                f"lm-eval ended with status {done.returncode} and "
                f"{'no results' if not found else 'an error'}",
                hint="its output above has the reason; `lm-eval ls tasks` lists the tasks",
            )
        return read_results(json.loads(found[-1].read_text()), limit)


def _model_args(client: Client, model: str, folder: Path) -> str:
    """Return lm-eval's settings for a model. The model's tokenizer is written into `folder`."""
    files = client.models.tokenizer(model).files
    folder.mkdir()
    for name, text in files.items():
        (folder / Path(name).name).write_text(text, encoding="utf-8")
    arguments = {
        "model": model,
        "base_url": f"{client.base_url}/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(folder),
        "num_concurrent": _CONCURRENT,
    }
    context = json.loads(files.get("config.json", "{}")).get("max_position_embeddings")
    if isinstance(context, int):
        arguments["max_length"] = context
    return json.dumps(arguments)


def read_results(document: dict[str, Any], limit: int | None) -> TaskResults:  # Any: JSON
    """Convert the results file of lm-eval. The result of a group of tasks is converted in the same
    way as the result of a single task."""
    shots, versions = document.get("n-shot", {}), document.get("versions", {})
    samples = document.get("n-samples", {})
    tasks = []
    for task, values in document["results"].items():
        numbers = dict(_numbers(values.items()))
        tasks.append(
            TaskResult(
                task=task,
                metrics={name: value for name, value in numbers.items() if "_stderr," not in name},
                errors={
                    name.replace("_stderr,", ","): value
                    for name, value in numbers.items()
                    if "_stderr," in name
                },
                samples=samples.get(task, {}).get("effective"),
                n_shot=shots.get(task),
                version=None if versions.get(task) is None else str(versions[task]),
            )
        )
    version = importlib.metadata.version("lm-eval")
    return TaskResults(harness=f"lm-eval {version}", tasks=tasks, limit=limit)


def _numbers(items: Iterable[tuple[str, object]]) -> Iterable[tuple[str, float]]:
    """Yield the metrics with finite values.

    In results of lm-eval, a metric's name ends in a comma and the name of a filter: `acc,none`.
    """
    for name, value in items:
        if "," not in name or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value):
            yield name, float(value)
