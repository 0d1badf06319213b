"""Read and check spec.json and the files that it names, before loading anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from pydantic import ValidationError

from tunesmith_schema import ErrorCode, RunSpec
from tunesmith_schema.documents import read_file
from tunesmith_schema.field_errors import field_errors

from .errors import RunError

EXIT_UNUSABLE = 2
"""Exit status if the run directory is unusable. argparse uses the same exit status for wrong
arguments."""


class UnusableRunDirectory(RunError):
    """Raised if the run directory has an error that the user must fix."""


def read_spec(root: Path) -> RunSpec:
    """Read and check spec.json. Raises UnusableRunDirectory if spec.json has an error."""
    if not root.is_dir():
        raise UnusableRunDirectory(
            ErrorCode.NOT_FOUND,
            f"folder not found: {root}",
            hint="RUN_DIR must contain spec.json and data/ (docs/reference/run-directory.md)",
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
    """Raise UnusableRunDirectory if a reinforcement run has no grader and no `--reward`."""
    if spec.method == "reinforcement" and spec.grader is None and not rewards:
        raise UnusableRunDirectory(
            ErrorCode.GRADER_INVALID,
            "spec.json has no grader, so nothing scores the completions",
            hint="add a grader to spec.json (docs/reference/graders.md), or pass --reward "
            "FILE.py:NAME",
            param="grader",
        )


def _parsed(path: Path) -> RunSpec:
    try:
        return read_file(RunSpec, path.read_bytes(), strict=True)
    except FileNotFoundError as error:
        raise UnusableRunDirectory(
            ErrorCode.NOT_FOUND,
            f"file not found: {path}",
            hint="docs/reference/run-directory.md has an example",
        ) from error
    except OSError as error:
        raise UnusableRunDirectory(
            ErrorCode.INVALID_REQUEST, f"cannot read {path}: {error.strerror}"
        ) from error
    except ValidationError as error:
        errors = field_errors(error.errors())
        field = errors[0].name
        more = f" (first of {len(errors)} errors)" if len(errors) > 1 else ""
        raise UnusableRunDirectory(
            ErrorCode.INVALID_REQUEST,
            f"{path}: {f'{field}: ' if field else ''}{errors[0].message}{more}",
            hint="docs/reference/run-directory.md has an example; docs/reference/recipe.md lists "
            "all recipe fields",
            param=field or None,
        ) from error


def _check_file(root: Path, field: str, name: str) -> None:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UnusableRunDirectory(
            ErrorCode.INVALID_REQUEST,
            f"{root / 'spec.json'}: {field} must be a path inside the run directory, got {name}",
            # Use an absolute target: a relative target would start at the link's folder.
            hint=f"create a link: ln -s {(root / path).resolve()} {root / 'data' / path.name}, "
            f"and set {field} to data/{path.name}",
            param=field,
        )
    if not (root / path).is_file():
        problem = "not a file" if (root / path).exists() else "file not found"
        raise UnusableRunDirectory(
            ErrorCode.NOT_FOUND,
            f"{root / 'spec.json'}: {field}: {problem}: {root / path}",
            hint="paths are relative to the run directory",
            param=field,
        )


def _check_model(spec: RunSpec) -> None:
    path = Path(spec.model_path)
    if not path.is_dir() and (path.is_absolute() or spec.model_path.startswith(".")):
        raise UnusableRunDirectory(
            ErrorCode.MODEL_NOT_FOUND,
            f"Model '{spec.model}': folder not found: {spec.model_path}.",
            hint="Set model_path to an existing folder with a model, or to a Hugging Face id.",
            param="model",
        )
