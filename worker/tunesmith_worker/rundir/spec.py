"""spec.json and what it names, looked at before anything is loaded: what is wrong with a run
directory is told in a sentence. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from pydantic import ValidationError

from tunesmith_schema import ErrorCode, RunSpec
from tunesmith_schema.field_errors import field_errors
from tunesmith_schema.renames import read_stored

from .errors import RunError

EXIT_UNUSABLE = 2
"""Of a trainer that could not begin, as argparse's for wrong arguments."""


class UnusableRunDirectory(RunError):
    """Nothing can be trained from this directory as it stands."""


def read_spec(root: Path) -> RunSpec:
    """Raises UnusableRunDirectory."""
    if not root.is_dir():
        raise UnusableRunDirectory(
            ErrorCode.NOT_FOUND,
            f"there is no folder {root}",
            hint="RUN_DIR holds spec.json and data/ (docs/reference/run-directory.md)",
        )
    spec = _parsed(root / "spec.json")
    for field, name in (
        ("training_file", spec.training_file),
        ("validation_file", spec.validation_file),
    ):
        if name is not None:
            _check_file(root, field, name)
    _check_model(spec)
    return spec


def check_grader(spec: RunSpec, rewards: Sequence[str]) -> None:
    """`rewards`: what `--reward` gives. Raises UnusableRunDirectory."""
    if spec.method == "reinforcement" and spec.grader is None and not rewards:
        raise UnusableRunDirectory(
            ErrorCode.GRADER_INVALID,
            "spec.json: grader: nothing scores the completions",
            hint="add a grader to spec.json (docs/reference/graders.md), or pass --reward "
            "FILE.py:NAME",
            param="grader",
        )


def _parsed(path: Path) -> RunSpec:
    try:
        return read_stored(RunSpec, path.read_bytes())
    except FileNotFoundError as error:
        raise UnusableRunDirectory(
            ErrorCode.NOT_FOUND,
            f"{path.parent} has no spec.json",
            hint="docs/reference/run-directory.md has an example",
        ) from error
    except OSError as error:
        raise UnusableRunDirectory(
            ErrorCode.INVALID_REQUEST, f"{path} cannot be read: {error.strerror}"
        ) from error
    except ValidationError as error:
        found = field_errors(error.errors())
        field = found[0].name
        more = f" ({len(found)} errors; this is the first)" if len(found) > 1 else ""
        raise UnusableRunDirectory(
            ErrorCode.INVALID_REQUEST,
            f"{path}: {f'{field}: ' if field else ''}{found[0].message}{more}",
            hint="docs/reference/run-directory.md has an example, docs/reference/recipe.md every "
            "recipe field",
            param=field or None,
        ) from error


def _check_file(root: Path, field: str, name: str) -> None:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UnusableRunDirectory(
            ErrorCode.INVALID_REQUEST,
            f"{root / 'spec.json'}: {field} must lie inside the run directory, got {name}",
            # A link's target counts from the link: only an absolute one means the same file there.
            hint=f"link it there: ln -s {(root / path).resolve()} {root / 'data' / path.name}, "
            f"and name it data/{path.name}",
            param=field,
        )
    if not (root / path).is_file():
        what = "is not a file" if (root / path).exists() else "does not exist"
        raise UnusableRunDirectory(
            ErrorCode.NOT_FOUND,
            f"{root / 'spec.json'}: {field}: {root / path} {what}",
            hint="the path is relative to the run directory",
            param=field,
        )


def _check_model(spec: RunSpec) -> None:
    """A name that is no path may be one of the hub's: loading finds out."""
    path = Path(spec.model_path)
    if not path.is_dir() and (path.is_absolute() or spec.model_path.startswith(".")):
        raise UnusableRunDirectory(
            ErrorCode.MODEL_NOT_FOUND,
            f"Model '{spec.model}': there is no folder {spec.model_path} on this worker.",
            hint="Give a hub id, or the name of a folder with a model that the worker has.",
            param="model",
        )
