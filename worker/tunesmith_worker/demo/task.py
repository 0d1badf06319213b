"""Jobs of a demo and their files: the invented world, or the user's own model and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunesmith_schema import Recipe

from . import world
from .architecture import write_architecture
from .files import split_own_data, write_jsonl
from .recipes import GRADER, GRPO, LORA, OWN_MODEL, PRETRAIN, SEED, at_most

MODEL_NAME = "tiny-llama"
NUM_TAUGHT, NUM_HELD_OUT = 72, 56
OWN_SAMPLES = 4
OWN_NEW_TOKENS = 96
"""Enough to see the style; a large model on a CPU is slow."""


class BadTask(ValueError):
    """Error in the user's --model or --data."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One job."""

    title: str
    suffix: str
    train: Path
    valid: Path
    rows: int
    recipe: Recipe
    grader: Mapping[str, object] | None = None
    """Grader of a GRPO job."""


@dataclass(frozen=True, kw_only=True)
class Task:
    description: str
    model: str
    """Name of the base model in the service."""
    base: str
    """Folder or Hugging Face id of the base model, unless the pretraining makes the model."""
    model_dir: Path | None
    """Folder of base models for the service."""
    tuning: Training
    pretraining: Training | None = None
    reinforcement: Training | None = None
    """Job on the same base model as `tuning`."""
    num_answers: int | None = None
    """Number of held-out rows to answer; None: all."""
    max_new_tokens: int = 48
    answers_are_known: bool = True
    """True if each prompt has exactly one right answer."""


def invented_task(output: Path, max_steps: int | None) -> Task:
    """Write the data sets of the invented world, and a model folder without weights."""
    people = world.make_world(SEED, taught=NUM_TAUGHT, held_out=NUM_HELD_OUT)
    facts, style = world.facts(people, SEED), world.style(people, SEED)
    questions = world.questions(people, SEED)
    model_dir = output / "architecture"
    write_architecture(model_dir / MODEL_NAME, world.texts(facts, style))
    (output / "data").mkdir()

    def training(title: str, suffix: str, rows: world.DataSet, recipe: Recipe) -> Training:
        train, valid = (output / "data" / f"{suffix}{end}.jsonl" for end in ("", "_valid"))
        write_jsonl(train, rows.train)
        write_jsonl(valid, rows.valid)
        return Training(
            title=title,
            suffix=suffix,
            train=train,
            valid=valid,
            rows=len(rows.train),
            recipe=at_most(recipe, max_steps),
            grader=GRADER if recipe is GRPO else None,
        )

    return Task(
        description=f"An invented world of {NUM_TAUGHT + NUM_HELD_OUT} inhabitants. A base model "
        "is trained from random weights to know all of them. LoRA trains the model on "
        f"{NUM_TAUGHT} of them to answer in JSON without being asked to; the other {NUM_HELD_OUT} "
        "are the test. GRPO teaches the base model the same for polite questions, with a grader "
        "and without example answers.",
        model=MODEL_NAME,
        base=str(model_dir / MODEL_NAME),
        model_dir=model_dir,
        pretraining=training("Full training from random weights", "pretrain", facts, PRETRAIN),
        tuning=training("LoRA on the new base model", "tune", style, LORA),
        reinforcement=training("GRPO on the new base model", "grpo", questions, GRPO),
    )


def own_task(output: Path, model: str, source: Path, max_steps: int | None) -> Task:
    """Return a LoRA job on the user's base model; the last rows of the data file are held out."""
    source, folder = source.expanduser(), Path(model).expanduser()
    if not source.is_file():
        raise BadTask(f"--data {source}: no such file")
    is_folder = folder.is_dir()
    if is_folder and not (folder / "config.json").is_file():
        raise BadTask(f"--model {folder}: the folder is not a model, because it has no config.json")
    if not is_folder and model.startswith(("/", ".", "~")):
        raise BadTask(f"--model {model}: no such folder")
    folder = folder.resolve()
    name = folder.name if is_folder else model
    (output / "data").mkdir()
    train, valid = output / "data" / "tune.jsonl", output / "data" / "tune_valid.jsonl"
    rows, held_out = split_own_data(source, train, valid)
    return Task(
        description=f"LoRA on {model} with {rows} rows of {source}. The last {held_out} rows are "
        "held out to compare the model before and after.",
        model=name,
        base=str(folder) if is_folder else model,
        model_dir=folder.parent if is_folder else None,
        tuning=Training(
            title=f"LoRA on {name}",
            suffix="demo",
            train=train,
            valid=valid,
            rows=rows,
            recipe=at_most(OWN_MODEL, max_steps),
        ),
        num_answers=OWN_SAMPLES,
        max_new_tokens=OWN_NEW_TOKENS,
        answers_are_known=False,
    )


def exact_match(answers: Sequence[str], expected: Sequence[str]) -> float:
    return sum(a == e for a, e in zip(answers, expected, strict=True)) / len(expected)


def facts_right(answers: Sequence[str], expected: Sequence[str]) -> float:
    """Return the share of answers in any form that name all facts of the expected record."""
    pairs = zip(answers, expected, strict=True)
    return sum(world.names_all_facts(a, record) for a, record in pairs) / len(expected)
