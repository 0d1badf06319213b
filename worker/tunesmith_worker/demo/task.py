"""Jobs of a demo and their files. The model and the data are either invented or the user's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tunesmith_schema import Recipe

from . import world
from .architecture import write_architecture
from .files import DemoError, split_own_data
from .recipes import GRPO, LORA, PRETRAIN, SEED

MODEL_NAME = "tiny-llama"
NUM_TAUGHT, NUM_HELD_OUT = 72, 56
DESCRIPTION = f"""\
An invented world of {NUM_TAUGHT + NUM_HELD_OUT} inhabitants. A base model with random weights \
first learns about all inhabitants. LoRA then trains it on {NUM_TAUGHT} inhabitants to answer in \
JSON without being asked; the other {NUM_HELD_OUT} inhabitants are for testing. GRPO teaches the \
base model to answer polite questions in JSON, with a grader and without example answers."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training job with its data files and recipe."""

    title: str
    train: Path
    valid: Path
    rows: int
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class Task:
    description: str
    model: str
    """Name of the first job's model in the service."""
    model_dir: Path | None
    """Folder that contains the first job's model; None for a Hugging Face id."""
    base: str
    """Folder or Hugging Face id of the base model in the comparison."""
    tune: Training
    """LoRA job, whose adapter the comparison uses."""
    pretrain: Training | None = None
    """Job that trains the base model for the other jobs."""
    grpo: Training | None = None


def invented_task(output: Path) -> Task:
    """Write the invented data sets, and a model folder without weights."""
    people = world.make_world(SEED, taught=NUM_TAUGHT, held_out=NUM_HELD_OUT)
    facts, style = world.pretraining_data(people), world.lora_data(people)
    questions = world.grpo_data(people)
    rows = (*facts.train, *style.train)
    texts = (message["content"] for row in rows for message in row["messages"])
    write_architecture(output / "architecture" / MODEL_NAME, texts)
    return Task(
        description=DESCRIPTION,
        model=MODEL_NAME,
        model_dir=output / "architecture",
        base=str(output / "models" / "demo-base"),
        pretrain=_training(
            output, "pretrain", "Full training from random weights", facts, PRETRAIN
        ),
        tune=_training(output, "tune", "LoRA on the new base model", style, LORA),
        grpo=_training(output, "grpo", "GRPO on the new base model", questions, GRPO),
    )


def own_task(output: Path, model: str, source: Path, max_steps: int | None) -> Task:
    """Return a LoRA job on the user's base model; the last rows of the data file are held out."""
    source, folder = source.expanduser(), Path(model).expanduser()
    if not source.is_file():
        raise DemoError(f"--data {source}: no such file")
    is_folder = folder.is_dir()
    if is_folder and not (folder / "config.json").is_file():
        raise DemoError(
            f"--model {folder}: the folder is not a model, because it has no config.json"
        )
    if not is_folder and model.startswith(("/", ".", "~")):
        raise DemoError(f"--model {model}: no such folder")
    folder = folder.resolve()
    name = folder.name if is_folder else model
    data = split_own_data(source)
    recipe = Recipe(tuning="lora", max_steps=max_steps or "auto")
    return Task(
        description=f"LoRA on {model} with {len(data.train)} rows of {source}. The last "
        f"{len(data.valid)} rows are held out to compare the model before and after.",
        model=name,
        model_dir=folder.parent if is_folder else None,
        base=str(folder) if is_folder else model,
        tune=_training(output, "tune", f"LoRA on {name}", data, recipe),
    )


def _training(output: Path, name: str, title: str, data: world.DataSet, recipe: Recipe) -> Training:
    folder = output / "data"
    folder.mkdir(exist_ok=True)
    train, valid = folder / f"{name}.jsonl", folder / f"{name}_valid.jsonl"
    for file, rows in ((train, data.train), (valid, data.valid)):
        # default=str: Parquet has dates and other types that JSON lacks.
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        file.write_text("".join(lines), encoding="utf-8")
    return Training(title=title, train=train, valid=valid, rows=len(data.train), recipe=recipe)
