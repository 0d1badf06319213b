"""`tunesmith adapters verify FOLDER`: compare a downloaded result with the trained model.

Exit status: 0 if the files match the trained model, 1 if they do not match, 2 if they cannot be
compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import ValidationError

from tunesmith_schema.documents import read_file
from tunesmith_schema.verification import VERIFICATION_FILE, Verification
from tunesmith_worker.rundir.errors import error_text
from tunesmith_worker.rundir.fingerprint import fingerprint

from .compare import Comparison, ResultMismatch
from .files import check_base_name, check_files
from .folder import compare_folder
from .load import load_adapter, load_base, load_full
from .tolerance import arithmetic_of, coarser

Untyped = Any  # Any: transformers is not typed

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class NotComparable(Exception):
    """Raised if the folder or its base model cannot be read.

    The first argument is the message, the second is the hint."""


def verify(folder: Path, base: str | None) -> Comparison:
    """Compare a downloaded result with its verification.json: checksums, settings and logits.

    `base`: folder or Hugging Face id of the base model; None means the name in adapter_config.json.
    Raises ResultMismatch or NotComparable."""
    verification = read_verification(folder)
    if verification.kind == "lora":
        check_base_name(folder, verification.base_model)
    check_files(folder, verification)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = _DTYPES[verification.dtype]
    here = arithmetic_of(dtype, verification.quantization, device)
    arithmetic = coarser(here, verification.arithmetic)

    def load() -> Untyped:
        if verification.kind == "full":
            return load_full(folder, dtype, device)
        return load_adapter(_load_base(verification, base, dtype, device), folder)

    try:
        return compare_folder(folder, load, arithmetic)
    except ResultMismatch as error:
        raise ResultMismatch(f"{error}{_base_difference(verification, base)}") from error


def read_verification(folder: Path) -> Verification:
    path = folder / VERIFICATION_FILE
    if not folder.is_dir():
        raise NotComparable(
            f"folder not found: {folder}", "pass the folder of a downloaded adapter"
        )
    if not path.is_file():
        raise NotComparable(
            f"{folder} has no {VERIFICATION_FILE}",
            f"only results of jobs have a {VERIFICATION_FILE}; checkpoints and results of earlier "
            "versions cannot be verified",
        )
    try:
        return read_file(Verification, path.read_bytes())
    except ValidationError as error:
        raise NotComparable(
            f"{path} is not readable: {error.error_count()} fields are wrong",
            "download the adapter again",
        ) from error


def _load_base(
    verification: Verification, base: str | None, dtype: torch.dtype, device: torch.device
) -> Untyped:
    name = base or verification.base_model
    try:
        return load_base(name, dtype, verification.quantization, verification.vocabulary, device)
    except Exception as error:  # a broken model can raise anything
        raise NotComparable(
            f"the base model {name!r} cannot be loaded: {error_text(error)}",
            "pass its folder or its Hugging Face id: --base PATH",
        ) from error


def _base_difference(verification: Verification, base: str | None) -> str:
    """Return a remark if the files of the base model differ from those used in training."""
    name, expected = base or verification.base_model, verification.base_fingerprint
    if verification.kind == "full" or expected is None or not Path(name).is_dir():
        return ""
    if fingerprint(name) == expected:
        return ""
    return f". The files of the base model {name!r} differ from those used in training"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tunesmith adapters verify",
        description="Load a downloaded result with plain PEFT and transformers, and compare it "
        "with the model that was trained.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the download")
    parser.add_argument(
        "--base",
        metavar="PATH",
        help="folder or Hugging Face id of the base model (default: the name in "
        "adapter_config.json)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    try:
        comparison = verify(arguments.folder, arguments.base)
    except ResultMismatch as error:
        text = f"the files are not the trained model: {error}"
        return _fail(text, "download the adapter again; check --base", 1, as_json=arguments.json)
    except NotComparable as error:
        message, hint = error.args
        return _fail(message, hint, 2, as_json=arguments.json)
    if arguments.json:
        values = {
            "verified": True,
            "max_difference": comparison.max_difference,
            "tolerance": comparison.tolerance,
        }
        sys.stdout.write(json.dumps(values) + "\n")
    else:
        sys.stdout.write(f"verified: {comparison.summary()}\n")
    return 0


def _fail(message: str, hint: str, status: int, *, as_json: bool) -> int:
    if as_json:
        verified = False if status == 1 else None
        sys.stdout.write(json.dumps({"verified": verified, "error": message}) + "\n")
    sys.stderr.write(f"error: {message}\nhint: {hint}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
