"""A sound run of every family raises no alarm, whatever its recipe; and the self-check changes
nothing of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import COMMON, FAMILIES, model_of
from tests.worker.runs import QUESTIONS, event_data, losses, read_events, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

Untyped = Any  # Any: transformers is not typed

BF16 = {"precision": "bf16"}
FULL = {"tuning": "full"}
RUNS: list[tuple[str, dict[str, Any]]] = [  # Any: JSON
    ("llama", {}),
    ("llama-bias", {"lora": {"bias": "all"}}),
    ("llama-mha", BF16),
    ("llama-gelu", FULL),
    ("llama-3-rope", {"packing": True}),
    ("mistral", {"lora": {"lora_dropout": 0.2, "use_rslora": True}}),
    ("qwen2", FULL | {"precision": "bf16_split_master"}),
    ("qwen2-sliding", BF16),
    ("qwen3", {"lora": {"target_modules": "all-linear"}}),
    ("gemma2", BF16),
    ("gemma3", FULL),
    ("phi3", {"lora": {"target_modules": ["o_proj", "gate_up_proj"]}}),
    ("smollm3", {"patches": "off"}),
    ("granite", FULL | {"precision": "bf16"}),
    ("olmo2", {"patches": ["loss"]}),
    ("olmo3", BF16 | {"patches": "off"}),
    ("ministral", {"gradient_checkpointing": True}),
    ("cwm", {"assistant_only_loss": False}),
    ("gemma", {"add_tokens": ["<new>"]}),
    ("vaultgemma", FULL | {"from_scratch": True}),
    ("hyperclovax", {"packing": True, "precision": "bf16"}),
    ("nf4", {"quantization": "nf4"}),
    ("nf4", {"quantization": "nf4", "precision": "bf16"}),
    ("nf4", {"quantization": "int8"}),
    ("experts", {}),
]
CONFIGS: dict[str, Callable[[], Untyped]] = {
    "nf4": lambda: transformers.LlamaConfig(
        **COMMON | {"hidden_size": 64, "intermediate_size": 64}
    ),
    "experts": lambda: transformers.MixtralConfig(**COMMON, num_local_experts=4),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Untyped:
    """`models(family)`: a folder with a model of the family and the tiny tokenizer."""
    tokenizer = make_tiny_tokenizer()
    root = tmp_path_factory.mktemp("families")

    def folder_of(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            config = {**FAMILIES, **CONFIGS}[family]()
            config.vocab_size = len(tokenizer)
            model_of(config).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return folder

    return folder_of


@pytest.mark.parametrize(("family", "recipe"), RUNS)
def test_a_good_run_gives_no_alarm(
    make_run: MakeRun, models: Untyped, family: str, recipe: dict[str, Any]
) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 1, **recipe}, model_path=str(models(family)))
    assert main(run) == 0, read_result(run).error
    (checks,) = [d["checks"] for d in event_data(run, EventKind.MESSAGE) if "checks" in d]
    states = {name: one["state"] for name, one in checks.items()}
    assert set(states.values()) <= {"passed", "not_applicable"}, checks
    assert states["rows_apart"] == "passed"
    stock = "not_applicable" if recipe.get("patches") == "off" else "passed"
    assert states["patched_equals_stock"] == stock
    assert states.get("adapter_acts", "full") == ("full" if "tuning" in recipe else "passed")
    assert not [e for e in read_events(run) if e.level == "warn" and "Self-check" in e.message]


@pytest.mark.parametrize(
    "recipe",
    [
        {"lora": {"lora_dropout": 0.1}},
        BF16,
        {"packing": True},
        FULL,
        FULL | {"precision": "bf16_sr8"},
    ],
    ids=str,
)
def test_a_run_is_the_same_to_the_bit_without_it(make_run: MakeRun, recipe: dict[str, Any]) -> None:
    found = []
    for checked in (True, False):
        given = {"max_steps": 3, "learning_rate": 1e-2, "self_check": checked, **recipe}
        run = make_run(QUESTIONS, recipe=given, name=f"checked-{checked}")
        assert main(run) == 0
        told = [e for e in read_events(run) if e.message.startswith("self-check:")]
        assert len(told) == checked
        saved = {path.name: path.read_bytes() for path in (run / "adapter").glob("*.safetensors")}
        grad_norms = [p["grad_norm"] for p in event_data(run, EventKind.METRICS)]
        found.append((losses(run), grad_norms, saved))
    assert found[0] == found[1]


def test_the_model_is_afterwards_what_it_was(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor, gradient, mode, flag and random number; the trainer's optimiser too."""
    from tunesmith_worker.trainer.selfcheck import self_check as right

    seen = []

    def state(subject: Untyped) -> Untyped:
        trainer, model = subject.trainer, subject.model
        return (
            {n: (t.dtype, t.detach().clone()) for n, t in model.state_dict().items()},
            {n: b.clone() for n, b in model.named_buffers()},
            {n: (p.grad, p.requires_grad) for n, p in model.named_parameters()},
            {n: m.training for n, m in model.named_modules()},
            (torch.get_rng_state(), random.getstate()),
            (trainer.optimizer, trainer.lr_scheduler, trainer.trained_tokens),
            subject.patched.report.summary(),
        )

    def watched(subject: Untyped, *rest: Untyped) -> None:
        before = state(subject)
        right(subject, *rest)
        seen.append((before, state(subject)))

    monkeypatch.setattr("tunesmith_worker.trainer.assemble_sft.self_check", watched)
    assert main(make_run(QUESTIONS, recipe={"max_steps": 1, **BF16})) == 0
    ((before, after),) = seen
    assert _equal(before, after)


def _equal(one: Untyped, other: Untyped) -> bool:
    """Bit for bit, through dicts and tuples."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
