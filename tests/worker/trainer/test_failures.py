"""What goes wrong is named: exceptions as failures, and runs that must not succeed."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_events, read_result
from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure
from tunesmith_worker.rundir.errors import RunError, explain_out_of_memory, failure_of
from tunesmith_worker.trainer.run import main

FAST = {"max_steps": 1, "per_device_train_batch_size": 2}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
        ),
        MemoryError(),
    ],
)
def test_running_out_of_memory_names_the_batch_size(error: Exception) -> None:
    with pytest.raises(RunError) as caught, explain_out_of_memory(8):
        raise error
    failure = caught.value.failure
    assert failure.code == ErrorCode.OUT_OF_MEMORY
    assert failure.category == ErrorCategory.OUT_OF_MEMORY
    assert failure.message.startswith("Out of memory at batch_size=8: ")
    assert failure.hint is not None
    assert "per_device_train_batch_size to 4" in failure.hint
    assert failure_of(error).code == ErrorCode.OUT_OF_MEMORY


def test_an_allocation_that_is_refused_is_out_of_memory() -> None:
    """By what torch really says here."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 48)
    assert failure_of(caught.value).code == ErrorCode.OUT_OF_MEMORY


def test_a_full_disk_and_a_bug_are_the_hosts_affair() -> None:
    full = failure_of(OSError(errno.ENOSPC, "No space left on device"))
    assert (full.category, full.code) == (ErrorCategory.INFRASTRUCTURE, ErrorCode.DISK_FULL)
    bug = failure_of(ZeroDivisionError("division by zero"))
    assert (bug.category, bug.code) == (ErrorCategory.INFRASTRUCTURE, ErrorCode.TRAINER_CRASHED)
    assert bug.message == "The trainer crashed: ZeroDivisionError: division by zero"


def failure(run: Path, status: int = 1) -> JobFailure:
    assert main(run) == status
    result = read_result(run)
    assert result.outcome == "failed"
    assert result.error is not None
    return result.error


def test_a_missing_model(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(QUESTIONS, recipe=FAST, model_path=str(tmp_path / "nowhere"))
    found = failure(run, status=2)
    assert found.code == ErrorCode.MODEL_NOT_FOUND
    assert found.category == ErrorCategory.USER
    assert "'acme/tiny'" in found.message
    assert found.param == "model"
    assert found.hint is not None
    assert "Hugging Face id" in found.hint


def test_a_model_folder_without_safetensors(make_run: MakeRun, tmp_path: Path) -> None:
    from tests.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path / "empty", weights=False)
    found = failure(make_run(QUESTIONS, recipe=FAST, model_path=str(model)))
    assert (found.code, found.param) == (ErrorCode.MODEL_NOT_USABLE, "model")
    assert "holds no *.safetensors" in found.message
    assert found.hint is not None
    assert "recipe.from_scratch=true" in found.hint


def cut_off(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def of_another_shape(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"][:3].clone()
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def with_a_config_that_cannot_be(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": -1}))


def with_an_empty_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "SafetensorError"),
        (of_another_shape, "model.norm.weight"),
        (with_a_config_that_cannot_be, "hidden size (-1)"),
        (with_an_empty_tokenizer, "KeyError: 'added_tokens'"),
    ],
)
def test_a_broken_model_is_the_models_fault(
    make_run: MakeRun, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    from tests.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path / "broken")
    damage(model)
    found = failure(make_run(QUESTIONS, recipe=FAST, model_path=str(model)))
    assert (found.code, found.category) == (ErrorCode.MODEL_NOT_USABLE, ErrorCategory.USER)
    assert words in found.message
    assert found.hint


def test_a_disk_that_fills_while_a_model_is_loaded_is_not_the_models_fault(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", full)
    assert failure(make_run(QUESTIONS, recipe=FAST)).code == ErrorCode.DISK_FULL


def test_rows_whose_answers_are_cut_off(make_run: MakeRun) -> None:
    rows = [{"prompt": "word " * 300, "completion": "yes"}] * 4
    found = failure(make_run(rows, recipe={**FAST, "overlong": "truncate", "max_seq_length": 64}))
    assert (found.code, found.category) == (ErrorCode.NO_TRAINABLE_TOKENS, ErrorCategory.DATA)
    assert "in 4 rows, the cut to max_seq_length=64 removes the whole answer" in found.message
    assert found.hint is not None
    assert "raise recipe.max_seq_length" in found.hint


def test_pickled_weights_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    from tests.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path / "pickled", weights=False)
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    found = failure(make_run(QUESTIONS, recipe=FAST, model_path=str(model)))
    assert found.code == ErrorCode.MODEL_NOT_USABLE
    assert "only pytorch_model.bin" in found.message
    assert found.hint is not None
    assert "save_pretrained" in found.hint


def test_missing_weights_are_not_made_up(make_run: MakeRun, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from tests.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path / "torn")
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    found = failure(make_run(QUESTIONS, recipe=FAST, model_path=str(model)))
    assert found.code == ErrorCode.MODEL_NOT_USABLE
    assert "model.layers.1.mlp.up_proj.weight" in found.message


@pytest.mark.parametrize(
    ("recipe", "code", "words"),
    [
        ({"lora": {"target_modules": ["q_proj", "w_proj"]}}, "recipe_invalid", "no layer 'w_proj'"),
        (
            {"lora": {"target_modules": ["q_proj", "lm_head"]}},
            *("recipe_invalid", "names matrices that would train as a whole"),
        ),
        (
            {"lora": {"target_modules": ["model.embed_tokens"]}},
            *("recipe_invalid", "(tied: one weight, saved under both names)"),
        ),
        ({"max_seq_length": 1000}, "recipe_invalid", "model's context of 256"),
        ({"max_seq_length": 8}, "no_trainable_tokens", "all 16 rows are longer"),
        ({"max_seq_length": 20, "overlong": "error"}, "row_too_long", "train.jsonl, row 1 has"),
    ],
)
def test_recipes_that_cannot_work(
    make_run: MakeRun, recipe: dict[str, Any], code: str, words: str
) -> None:
    found = failure(make_run(QUESTIONS, recipe={**FAST, **recipe}))
    assert found.code == code
    assert words in found.message
    assert found.hint


def test_a_bad_row_is_named(make_run: MakeRun) -> None:
    rows = [*QUESTIONS, {"question": "a", "answer": ""}]
    found = failure(make_run(rows, recipe=FAST, training_file_name="my questions.jsonl"))
    assert (found.code, found.category) == (ErrorCode.DATASET_INVALID, ErrorCategory.DATA)
    assert found.message == "my questions.jsonl, row 17: answer is empty"
    assert found.hint == "Fix the row and upload the file again."


@pytest.mark.filterwarnings("ignore:.*encountered in")
def test_a_loss_that_is_not_finite_ends_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from tests.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path / "nan")
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][:] = float("nan")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    recipe = {**FAST, "max_steps": 10, "self_check": False}
    run = make_run(QUESTIONS, recipe=recipe, model_path=str(model))
    found = failure(run)
    assert (found.code, found.category) == (ErrorCode.LOSS_NONFINITE, ErrorCategory.USER)
    assert found.message.startswith("Step 1: the gradient is not finite. Each of the step's ")
    assert "comes from model.norm, " in found.message
    assert "model.norm.weight is itself not finite." in found.message
    assert found.hint == "The weights of the base model are damaged. Use another copy of the model."


def test_a_loss_that_is_not_finite_over_a_finite_gradient_ends_the_run(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunesmith_worker.trainer.methods.sft import SFTTrainer

    compute = SFTTrainer.compute_loss
    monkeypatch.setattr(SFTTrainer, "compute_loss", lambda *a, **k: compute(*a, **k) + math.inf)
    run = make_run(QUESTIONS, recipe={**FAST, "max_steps": 10, "self_check": False})
    found = failure(run)
    assert found.code == ErrorCode.LOSS_NONFINITE
    assert "step 3" in found.message
    points = event_data(run, read_events(run)[-1].kind)
    assert [point["train_loss"] for point in points] == [None] * 3
    assert sum(event.level == "warn" for event in read_events(run)) == 1
