"""What is to be trained on which files: the invented world, or the user's own model and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunesmith_schema import Recipe

from . import world
from .architecture import write_architecture
from .own_data import split_own_data, write_jsonl
from .recipes import GRADER, GRPO, LORA, OWN_MODEL, PRETRAIN, SEED, at_most

MODEL_NAME = "tiny-llama"
NUM_TAUGHT, NUM_HELD_OUT = 72, 56
OWN_SAMPLES = 4
OWN_NEW_TOKENS = 96
"""Enough to see the style; a large model on a CPU takes its time for each."""


class BadTask(ValueError):
    """What the user gave cannot be used; the message says what and why."""


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
    """What scores the model's own answers; None: the rows have answers to learn."""


@dataclass(frozen=True, kw_only=True)
class Task:
    description: str
    model: str
    """The base model's name for the service."""
    base: str
    """Where the base model is loaded from, unless the pretraining makes it."""
    model_dir: Path | None
    """Folder of base models that the service may use."""
    pretraining: Training | None
    tuning: Training
    reinforcement: Training | None
    """On the base model, as `tuning`."""
    num_answers: int | None
    """How many held-out rows are answered; None: all."""
    max_new_tokens: int
    answers_are_known: bool
    """Each prompt has one right answer, to the letter."""


def invented_task(output: Path, max_steps: int | None) -> Task:
    """Make the world's data sets, and a model folder without weights."""
    people = world.make_world(SEED, taught=NUM_TAUGHT, held_out=NUM_HELD_OUT)
    facts, style = world.facts(people, SEED), world.style(people, SEED)
    model_dir, data = output / "architecture", output / "data"
    write_architecture(model_dir / MODEL_NAME, world.texts(facts, style))
    data.mkdir()

    def training(
        name: str,
        rows: world.DataSet | world.Questions,
        recipe: Recipe,
        title: str,
        grader: Mapping[str, object] | None = None,
    ) -> Training:
        train, valid = data / f"{name}.jsonl", data / f"{name}_valid.jsonl"
        write_jsonl(train, rows.train)
        write_jsonl(valid, rows.valid)
        return Training(
            title=title,
            suffix=name,
            train=train,
            valid=valid,
            rows=len(rows.train),
            recipe=at_most(recipe, max_steps),
            grader=grader,
        )

    return Task(
        description=f"An invented world of {NUM_TAUGHT + NUM_HELD_OUT} inhabitants. A base model "
        f"is trained from random weights to know them all; then LoRA, shown {NUM_TAUGHT} of them, "
        f"teaches it to answer in JSON unasked. It is examined on the other {NUM_HELD_OUT}. GRPO "
        "teaches the base model the same for polite questions, by a grader and without answers.",
        model=MODEL_NAME,
        base=str(model_dir / MODEL_NAME),
        model_dir=model_dir,
        pretraining=training("pretrain", facts, PRETRAIN, "Full training from random weights"),
        tuning=training("tune", style, LORA, "LoRA on the new base model"),
        reinforcement=training(
            "grpo",
            world.questions(people, SEED),
            GRPO,
            "GRPO on the new base model",
            GRADER,
        ),
        num_answers=None,
        max_new_tokens=48,
        answers_are_known=True,
    )


def own_task(output: Path, model: str, source: Path, max_steps: int | None) -> Task:
    """A LoRA job on the user's base model; the end of the data file is held out."""
    source, folder = source.expanduser(), Path(model).expanduser()
    if not source.is_file():
        raise BadTask(f"--data {source}: there is no such file")
    is_folder = folder.is_dir()
    if is_folder and not (folder / "config.json").is_file():
        raise BadTask(f"--model {folder}: the folder has no config.json, so it is no model")
    if not is_folder and model.startswith(("/", ".", "~")):
        raise BadTask(f"--model {model}: there is no such folder")
    folder = folder.resolve()
    data = output / "data"
    data.mkdir()
    train, valid = data / "tune.jsonl", data / "tune_valid.jsonl"
    rows, held_out = split_own_data(source, train, valid)
    return Task(
        description=f"LoRA on {model} with {rows} rows of {source}; the last {held_out} are held "
        "out to compare before and after.",
        model=folder.name if is_folder else model,
        base=str(folder) if is_folder else model,
        model_dir=folder.parent if is_folder else None,
        pretraining=None,
        tuning=Training(
            title=f"LoRA on {folder.name if is_folder else model}",
            suffix="demo",
            train=train,
            valid=valid,
            rows=rows,
            recipe=at_most(OWN_MODEL, max_steps),
        ),
        reinforcement=None,  # what a good answer is worth, only the user can say
        num_answers=OWN_SAMPLES,
        max_new_tokens=OWN_NEW_TOKENS,
        answers_are_known=False,
    )


def exact_match(answers: Sequence[str], expected: Sequence[str]) -> float:
    return sum(a == e for a, e in zip(answers, expected, strict=True)) / len(expected)


def facts_right(answers: Sequence[str], expected: Sequence[str]) -> float:
    """Share of answers that name all that the expected record says, in whatever form."""
    pairs = zip(answers, expected, strict=True)
    return sum(world.names_all_facts(a, record) for a, record in pairs) / len(expected)
