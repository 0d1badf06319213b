"""A create, fork or edit request as JSON, command line, SDK call and curl."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CREATE = "/v1/fine_tuning/jobs"
_WORDS = ("n_epochs", "batch_size", "learning_rate_multiplier", "eval_samples")


@dataclass(frozen=True, kw_only=True)
class Form:
    """Text of the request for one interface, for example curl."""

    name: str
    text: str


def create(body: Mapping[str, Any], origin: str) -> list[Form]:  # Any: JSON
    """Return the texts of a create request for all interfaces."""
    return _forms(body, origin, _CREATE, "client.fine_tuning.jobs.create(", _create_command(body))


def fork(job_id: str, body: Mapping[str, Any], origin: str) -> list[Form]:  # Any: JSON
    """Return the texts of a fork request for all interfaces."""
    command = ["tunesmith jobs fork", job_id]
    command += [f"--{name} {_quoted(body[name])}" for name in ("step", "suffix") if name in body]
    command += _recipe_options(body.get("recipe", {}))
    command += [f"--grader {_quoted(body['grader'])}"] if "grader" in body else []
    sdk = f"client.fine_tuning.jobs.fork(\n    {job_id!r},"
    return _forms(body, origin, f"{_CREATE}/{job_id}/fork", sdk, command)


def edit(job_id: str, body: Mapping[str, Any], origin: str) -> list[Form]:  # Any: JSON
    """Return the texts of a request that changes a job, for all interfaces."""
    command = ["tunesmith jobs edit", job_id]
    command += [f"--{name} {_quoted(value or '')}" for name, value in body.items()]
    sdk = f"client.fine_tuning.jobs.edit(\n    {job_id!r},"
    return _forms(body, origin, f"{_CREATE}/{job_id}", sdk, command, "-X PATCH ")


def _forms(
    body: Mapping[str, Any], origin: str, path: str, sdk: str, command: list[str], verb: str = ""
) -> list[Form]:
    text = json.dumps(body, indent=2, ensure_ascii=False)
    arguments = "".join(f"\n    {name}={value!r}," for name, value in body.items())
    curl = (
        f"curl {verb}{shlex.quote(origin + path)} \\\n"
        '  -H "Authorization: Bearer $TUNESMITH_API_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )
    forms = [Form(name="JSON", text=text)]
    if command:
        forms.append(Form(name="Command line", text=" \\\n  ".join(command)))
    return [*forms, Form(name="Python", text=f"{sdk}{arguments}\n)"), Form(name="curl", text=curl)]


def _create_command(body: Mapping[str, Any]) -> list[str]:
    command = ["tunesmith jobs create"]
    names = {"model": "model", "training_file": "data", "validation_file": "validation",
             "suffix": "suffix", "seed": "seed"}  # fmt: skip
    command += [
        f"--{option} {_quoted(body[name])}" for name, option in names.items() if name in body
    ]
    method = body.get("method") or {}
    member = method.get(method.get("type"), {})
    if "grader" in member:
        command.append(f"--grader {_quoted(member['grader'])}")
    chosen, asked = member.get("hyperparameters") or {}, body.get("scheduling") or {}
    if not isinstance(chosen, Mapping) or not isinstance(asked, Mapping):
        return []
    if {*chosen} - {*_WORDS} or asked.get("device_bytes"):
        return []
    command += [f"--{name.replace('_', '-')} {_quoted(chosen[name])}" for name in chosen]
    command += _recipe_options(body.get("recipe", {}))
    metadata, labels = body.get("metadata") or {}, asked.get("worker_labels") or {}
    if not isinstance(metadata, Mapping) or not isinstance(labels, Mapping):
        return []
    command += [f"--metadata {_quoted(f'{name}={value}')}" for name, value in metadata.items()]
    command += [f"--label {_quoted(f'{name}={value}')}" for name, value in labels.items()]
    command += [f"--priority {_quoted(asked['priority'])}"] if asked.get("priority") else []
    return command + (["--interactive"] if asked.get("interactive") else [])


def _recipe_options(recipe: Mapping[str, Any]) -> list[str]:
    options = []
    for name, value in recipe.items():
        inner = {f"{name}.{key}": item for key, item in value.items()} if (
            isinstance(value, Mapping) and value
        ) else {name: value}  # fmt: skip
        options += [f"--recipe {_quoted(f'{key}={_text(item)}')}" for key, item in inner.items()]
    return options


def _text(value: Any) -> str:  # Any: JSON
    is_word = isinstance(value, str) and value.replace("_", "").replace("-", "").isalpha()
    plain = is_word and value not in ("true", "false", "null")
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def _quoted(value: Any) -> str:  # Any: JSON
    return shlex.quote(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
