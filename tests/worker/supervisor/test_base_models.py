"""A base model that went away or was cut off between a job's creation and its run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.supervisor.base_models import check_base_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards and their index."""
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for name in ("a", "b"):
        save_file({name: torch.ones(100)}, folder / f"{name}.safetensors", metadata={"x": "y"})
    weights = {"a": "a.safetensors", "b": "b.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weights}))
    return folder


def test_a_whole_model_and_a_hubs_id_pass(folder: Path) -> None:
    check_base_model("tiny", folder, from_scratch=False)
    check_base_model("acme/tiny", Path("acme/tiny"), from_scratch=False)


def test_a_model_to_be_made_from_scratch_needs_no_weights(folder: Path) -> None:
    (folder / "b.safetensors").unlink()
    check_base_model("tiny", folder, from_scratch=True)


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def without_a_shard(folder: Path) -> None:
    (folder / "b.safetensors").unlink()


def cut_off(folder: Path) -> None:
    weights = folder / "b.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def cut_off_in_its_header(folder: Path) -> None:
    weights = folder / "b.safetensors"
    weights.write_bytes(weights.read_bytes()[:20])


def empty(folder: Path) -> None:
    (folder / "b.safetensors").write_bytes(b"")


def with_half_an_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": ')


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (removed, "base_model_gone", "'tiny' is missing: "),
        (without_a_shard, "base_model_gone", "lacks 1 of 2 weight files, such as b.safe"),
        (cut_off, "model_not_usable", "needs 496"),
        (
            cut_off_in_its_header,
            "model_not_usable",
            "b.safetensors has 20 bytes, no complete header",
        ),
        (empty, "model_not_usable", "b.safetensors has 0 bytes"),
        (with_half_an_index, "model_not_usable", "model.safetensors.index.json has 21 bytes"),
    ],
)
def test_a_model_that_is_gone_or_damaged_is_named(
    folder: Path, damage: Callable[[Path], None], code: ErrorCode, words: str
) -> None:
    damage(folder)
    with pytest.raises(RunError) as caught:
        check_base_model("tiny", folder, from_scratch=False)
    failure = caught.value.failure
    assert (failure.code, failure.category) == (code, ErrorCategory.INFRASTRUCTURE)
    assert words in failure.message
    assert (failure.param, bool(failure.hint)) == ("model", True)
