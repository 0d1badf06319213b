"""What is saved is what was trained: every planted fault of saving is refused before `succeeded`,
and by `tunesmith adapters verify` after a download."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny_model import make_tiny_model
from tests.worker.conftest import MakeRun
from tests.worker.engine.verify import faults
from tests.worker.runs import QUESTIONS, read_events, read_result
from tunesmith_schema import ErrorCategory, ErrorCode, Recipe, RunReport, RunSpec
from tunesmith_schema.verification import Verification
from tunesmith_worker.engine.model import adapters
from tunesmith_worker.engine.patches import Patched
from tunesmith_worker.engine.verify.__main__ import verify
from tunesmith_worker.engine.verify.compare import ResultMismatch
from tunesmith_worker.engine.verify.files import verified_files
from tunesmith_worker.rundir.paths import write_json
from tunesmith_worker.trainer import outputs, read_back
from tunesmith_worker.trainer.methods.sft import SFTTrainer
from tunesmith_worker.trainer.run import main

FAST: dict[str, Any] = {  # Any: JSON
    "max_steps": 2,
    "save_steps": 1,
    "self_check": False,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "lora": {"r": 4},
}
BF16 = FAST | {"precision": "bf16"}
NEW = FAST | {"add_tokens": ["<think>", "zwölf"]}
FULL = FAST | {"tuning": "full", "lora": None}

FAULTS: list[tuple[str, faults.Fault | None, dict[str, Any], str]] = [
    ("module missing", faults.lose_a_module, FAST, "up_proj"),
    ("alpha doubled", faults.double_alpha, FAST, "scales LoRA wrongly in 14 of 14 layers"),
    ("stale weights", None, FAST, "does not contain the trained values of 28 of 28 tensors"),
    ("wrong base named", faults.name_another_base, FAST, "'acme/other' instead of 'acme/tiny'"),
    ("rows of new tokens lost", faults.lose_token_rows, NEW, "trainable_tokens_delta"),
    ("head untied", faults.untie_the_head, FULL, "lm_head.weight"),
    ("one B zero", faults.zero_one_b, FAST, "q_proj.lora_B"),
    ("truncated file", faults.truncate, FAST, "adapter_model.safetensors cannot be read"),
]


def stale(folder: Path) -> None:
    faults.put_stale_weights(folder.parent / "checkpoints" / "step-1")(folder)


MODES = ("checksums", "record", "logits")
"""What notices a fault: the checksums of verification.json; the record of tensors and scaling, if
the checksums are those of the wrong files; the logits, if there is no record."""


@pytest.fixture(scope="module")
def honest(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return `honest(recipe)`, which trains a recipe once."""
    folder = tmp_path_factory.mktemp("honest")

    def train(recipe: dict[str, Any]) -> Path:
        run = folder / hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]
        if not run.exists():
            write_run(run, tiny_model, recipe)
            assert main(run) == 0
        return run

    return train


def write_run(run: Path, model: Path, recipe: dict[str, Any]) -> None:
    (run / "data").mkdir(parents=True)
    rows = "".join(json.dumps(row) + "\n" for row in QUESTIONS)
    (run / "data" / "train.jsonl").write_text(rows)
    spec = RunSpec(
        job_id="ftjob-1",
        attempt=1,
        model="acme/tiny",
        model_path=str(model),
        training_file="data/train.jsonl",
        seed=7,
        recipe=Recipe.model_validate(recipe),
    )
    (run / "spec.json").write_text(spec.model_dump_json())


@pytest.fixture(params=FAULTS, ids=[name for name, *_ in FAULTS])
def planted(request: pytest.FixtureRequest) -> tuple[faults.Fault, dict[str, Any], str]:
    """A fault, the recipe of the run that has it, and words of the message."""
    _, fault, recipe, named = request.param
    return fault or stale, recipe, named


def test_a_fault_of_saving_is_refused_after_a_download(
    honest: Callable[..., Path],
    tiny_model: Path,
    tmp_path: Path,
    planted: tuple[faults.Fault, dict[str, Any], str],
) -> None:
    fault, recipe, named = planted
    run = honest(recipe)
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    for mode in MODES:
        download = tmp_path / mode
        shutil.copytree(run / "adapter", download)
        if mode == "logits":
            forget_record(download)
            relabel(download)
        verify(download, str(tiny_model))
        fault(download)
        if mode != "checksums":
            relabel(download)
        with pytest.raises(ResultMismatch) as caught:
            verify(download, str(tiny_model))
        assert mode != "record" or named in str(caught.value)


def test_a_fault_of_saving_is_refused_before_success(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planted: tuple[faults.Fault, dict[str, Any], str],
) -> None:
    fault, recipe, named = planted
    save = adapters.save_trained

    def save_wrongly(folder: Path, *args: Any, **kwargs: Any) -> Any:
        saved = save(folder, *args, **kwargs)
        if folder.name == "adapter":
            fault(folder)
        return saved

    monkeypatch.setattr(outputs, "save_trained", save_wrongly)
    run = tmp_path / "run"
    write_run(run, tiny_model, recipe)
    assert main(run) == 1
    result = read_result(run)
    assert result.outcome == "failed"
    assert result.error is not None
    assert result.error.code == ErrorCode.RESULT_MISMATCH
    assert result.error.category == ErrorCategory.INFRASTRUCTURE
    assert named in result.error.message
    assert not (run / "adapter" / "verification.json").exists()


def test_swapped_layers_are_refused_although_bf16_logits_hide_them(
    honest: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    download = tmp_path / "download"
    shutil.copytree(honest(BF16) / "adapter", download)
    faults.swap_two_layers(download)
    relabel(download)
    with pytest.raises(
        ResultMismatch, match=r"the values of 2 of these tensors are stored under other names"
    ):
        verify(download, str(tiny_model))
    forget_record(download)
    relabel(download)
    verify(download, str(tiny_model))


def forget_record(folder: Path) -> None:
    """Keep only token ids and logits, as earlier versions did."""
    save_file(load_file(folder / "probe.safetensors"), folder / "probe.safetensors")


def relabel(folder: Path) -> None:
    path = folder / "verification.json"
    verification = Verification.model_validate_json(path.read_bytes())
    write_json(path, verification.model_copy(update={"files": verified_files(folder)}))


@pytest.mark.parametrize(
    "recipe",
    [
        FAST,
        FAST | {"precision": "bf16", "patches": "off"},
        FAST | {"lora": {"r": 4, "bias": "all", "use_rslora": True}},
        NEW,
        FAST
        | {
            "lora": {"r": 4, "target_modules": ["q_proj", "embed_tokens", "lm_head"]},
            "allow_full_embeddings": True,
        },
        FULL,
        FULL | {"precision": "bf16_split_master", "add_tokens": ["<think>"]},
    ],
    ids=["lora", "bf16", "biases", "new-tokens", "whole-matrices", "full", "full-bf16"],
)
def test_an_honest_run_is_verified_far_below_the_tolerance(
    tmp_path: Path,
    tiny_model: Path,
    recipe: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds: list[float] = []
    compare = read_back._compare

    def timed(*args: Any) -> Any:
        began = time.process_time()
        comparison = compare(*args)
        seconds.append(time.process_time() - began)
        return comparison

    monkeypatch.setattr(read_back, "_compare", timed)
    run = tmp_path / "run"
    write_run(run, tiny_model, recipe)
    assert main(run) == 0
    content = (run / "adapter" / "verification.json").read_bytes()
    verification = Verification.model_validate_json(content)
    assert verification.max_difference <= verification.tolerance / 10
    assert 0 < verification.tolerance < 0.1
    assert verification.files.keys() == {
        path.name for path in (run / "adapter").iterdir() if path.name != "verification.json"
    }
    assert verification.step == 2
    assert verification.base_fingerprint
    assert any("the model loaded from disk" in event.message for event in read_events(run))
    again = verify(run / "adapter", None if recipe.get("tuning") == "full" else str(tiny_model))
    assert again.max_difference <= again.tolerance / 10
    assert seconds[0] < 1.5


def test_the_probe_has_the_new_tokens(honest: Callable[..., Path]) -> None:
    probe = json.loads((honest(NEW) / "adapter" / "verification.json").read_text())["probe"]
    assert len(probe) == 2
    assert {384, 385} <= set(probe[1])


def test_the_best_weights_are_compared_with_the_model_of_their_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = FAST | {"keep": "best", "max_steps": 3, "eval_steps": 1}
    save = adapters.save_trained
    folders: list[Path] = []

    def save_stale(folder: Path, *args: Any, **kwargs: Any) -> Any:
        """The writer leaves the whole folder of an earlier step, with its probe."""
        saved = save(folder, *args, **kwargs)
        if folder.name.startswith("best-"):
            earlier = folder.parent / "step-1"
            if folder.name != "best-step-1" and earlier.is_dir():
                shutil.copytree(earlier, folder, dirs_exist_ok=True)
                folders.append(folder)
        return saved

    monkeypatch.setattr(outputs, "save_trained", save_stale)
    run = make_run(QUESTIONS, valid=QUESTIONS[:3], recipe=recipe)
    assert main(run) == 1
    assert folders
    error = read_result(run).error
    assert error is not None
    assert (error.code, "has changed since the weights were saved" in error.message) == (
        ErrorCode.RESULT_MISMATCH,
        True,
    )


def test_another_base_model_is_not_the_trained_one(
    honest: Callable[..., Path], tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other")
    model = transformers.AutoModelForCausalLM.from_pretrained(other)
    model.model.layers[1].mlp.up_proj.weight.data += 0.01 * torch.randn(96, 48)
    model.save_pretrained(other)
    with pytest.raises(ResultMismatch, match=r"differ .* differ from those used in training"):
        verify(honest(FAST) / "adapter", str(other))


def test_an_error_that_is_no_mismatch_is_a_warning(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError("out of memory")

    monkeypatch.setattr(read_back, "unwrap", fail)
    run = make_run(QUESTIONS, recipe=FAST)
    assert main(run) == 0
    assert not (run / "adapter" / "verification.json").exists()
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    assert any("compared with the trained model (MemoryError" in text for text in warnings)


def test_an_error_of_patching_again_does_not_hide_a_mismatch(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a warning of the evaluation, and only if the result is the trained model."""
    ended: list[int] = []

    def train(trainer: Any, **arguments: Any) -> Any:
        result = right(trainer, **arguments)
        ended.append(1)
        return result

    def redo(patched: Any) -> None:
        if ended:
            raise MemoryError("no room for fused weights")
        patch_again(patched)

    right, patch_again = SFTTrainer.train, Patched.redo
    monkeypatch.setattr(SFTTrainer, "train", train)
    monkeypatch.setattr(Patched, "redo", redo)
    sound = make_run(QUESTIONS, recipe=FAST | {"evaluate": True}, name="sound")
    assert main(sound) == 0
    assert (sound / "adapter" / "verification.json").exists()
    report = RunReport.model_validate_json((sound / "report.json").read_bytes())
    assert report.no_evaluation == "MemoryError: no room for fused weights"

    ended.clear()
    save = adapters.save_trained

    def save_wrongly(folder: Path, *args: Any, **kwargs: Any) -> Any:
        saved = save(folder, *args, **kwargs)
        faults.double_alpha(folder)
        return saved

    monkeypatch.setattr(outputs, "save_trained", save_wrongly)
    wrong = make_run(QUESTIONS, recipe=FAST, name="wrong")
    assert main(wrong) == 1
    error = read_result(wrong).error
    assert error is not None
    assert error.code == ErrorCode.RESULT_MISMATCH


def test_a_full_result_that_was_not_read_back_says_why_it_has_no_evaluation(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError("out of memory")

    monkeypatch.setattr(read_back, "load_full", fail)
    run = make_run(QUESTIONS, recipe=FULL | {"evaluate": True})
    assert main(run) == 0
    reason = (
        "the saved result could not be loaded, and in full tuning the trained weights "
        "are removed from memory before the result is loaded"
    )
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert report.no_evaluation == reason
    warning = read_events(run)[-1]
    assert (warning.level, warning.message) == (
        "warn",
        f"The result is saved, but it could not be evaluated: {reason}",
    )


def test_a_model_that_derives_positions_from_the_padding_token_is_saved_as_trained(
    tiny_model: Path, tmp_path: Path
) -> None:
    """transformers' Trainer puts the tokenizer's padding token, 0, into the configuration."""
    base = tmp_path / "roberta"
    config = transformers.RobertaConfig(
        vocab_size=384, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=258, is_decoder=True, pad_token_id=1,
    )  # fmt: skip
    transformers.RobertaForCausalLM(config).save_pretrained(base)
    transformers.AutoTokenizer.from_pretrained(tiny_model).save_pretrained(base)
    run = tmp_path / "run"
    write_run(run, base, FULL)
    assert main(run) == 0
    assert json.loads((run / "adapter" / "config.json").read_text())["pad_token_id"] == 1
    assert verify(run / "adapter", None).max_difference == 0
