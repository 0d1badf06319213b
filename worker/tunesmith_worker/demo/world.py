"""Training data of the demo: inhabitants of an invented world, and questions about them.

The base model learns to answer in prose, and in JSON only on request. LoRA then learns to answer
every question in JSON. The training data of LoRA has questions about only some of the inhabitants.
The evaluation asks about the other inhabitants. GRPO gets questions without answers. A seed
determines all data.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FACTS = {
    "animal": "badger bear crow deer fox frog hare heron mole otter owl wolf",
    "home": "cave forest harbour island marsh meadow mill mountain orchard tower valley village",
    "food": "apples bread cheese grapes honey mushrooms nuts olives pears plums soup turnips",
}
"""Kinds of facts with their possible values."""
_STARTS = "Al Be Cor Da El Fen Gar Hol Is Jor Ka Lu Mi Nor"
_MIDDLES = "ba di la mo na ri so ve"
_ENDS = "bel dan len mer nia ras rin ta vin wen"

QUESTIONS = ("Who is {name}?", "Tell me about {name}.", "What do you know about {name}?")
"""The base model answers these questions in prose, and the LoRA adapter in JSON."""
JSON_REQUESTS = ("Describe {name} as JSON.", "JSON for {name}, please.", "{name} as JSON?")
"""The base model answers these requests in JSON, so that LoRA only has to learn when to use
JSON."""
POLITE = tuple(f"{question[:-1]}, please{question[-1]}" for question in QUESTIONS)
"""Questions that the base model was not trained on. Polite questions resemble QUESTIONS and
JSON_REQUESTS, so the base model answers some in prose and some in JSON. GRPO rewards JSON, so the
model learns to answer polite questions in JSON."""

Row = dict[str, Any]  # Any: JSON in OpenAI's chat form, plus columns for a grader


@dataclass(frozen=True, kw_only=True)
class Inhabitant:
    name: str
    facts: Mapping[str, str]

    def prose(self) -> str:
        sentence = "{name} is a {animal} who lives in the {home} and likes {food}."
        return sentence.format(name=self.name, **self.facts)

    def record(self) -> str:
        return json.dumps(self.facts)

    def row(self, question: str, answer: str | None = None) -> Row:
        """Return a row with the question and the answer. Without `answer`, the row has the facts as
        extra columns, which a grader reads."""
        messages = [{"role": "user", "content": question.format(name=self.name)}]
        if answer is None:
            return {"messages": messages, **self.facts}
        return {"messages": [*messages, {"role": "assistant", "content": answer}]}


@dataclass(frozen=True, kw_only=True)
class World:
    seed: int
    taught: tuple[Inhabitant, ...]
    """Inhabitants in the training sets of LoRA and GRPO."""
    held_out: tuple[Inhabitant, ...]
    """Inhabitants in the base model's training data, but not in the fine-tuning data."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    train: list[Row]
    valid: list[Row]


def make_world(seed: int, *, taught: int, held_out: int) -> World:
    rng = random.Random(seed)
    names = [
        start + middle + end
        for start in _STARTS.split()
        for middle in _MIDDLES.split()
        for end in _ENDS.split()
    ]
    people = tuple(
        Inhabitant(name=name, facts={fact: rng.choice(FACTS[fact].split()) for fact in FACTS})
        for name in rng.sample(names, taught + held_out)
    )
    return World(seed=seed, taught=people[:taught], held_out=people[taught:])


def pretraining_data(world: World) -> DataSet:
    """Return the base model's rows: questions about each inhabitant of the invented world, answered
    in prose, and in JSON on request.

    QUESTIONS has three questions about each inhabitant: training uses two of them, and validation
    the third. The validation loss therefore measures knowledge of the facts, not memorised rows.
    """
    train, valid = [], []
    for number, person in enumerate((*world.taught, *world.held_out)):
        unseen, *questions = (QUESTIONS[(number + i) % 3] for i in range(3))
        train += [person.row(question, person.prose()) for question in questions]
        train += [person.row(request, person.record()) for request in JSON_REQUESTS]
        valid.append(person.row(unseen, person.prose()))
    return _shuffled(world, train, valid)


def lora_data(world: World) -> DataSet:
    """Return rows for LoRA: questions with JSON answers. Validation uses held-out inhabitants."""
    train = [p.row(question, p.record()) for p in world.taught for question in QUESTIONS]
    valid = [p.row(QUESTIONS[i % 3], p.record()) for i, p in enumerate(world.held_out)]
    return _shuffled(world, train, valid)


def grpo_data(world: World) -> DataSet:
    """Return rows for GRPO: polite questions only. Validation uses the held-out inhabitants."""
    train = [person.row(question) for person in world.taught for question in POLITE]
    valid = [person.row(POLITE[i % 3]) for i, person in enumerate(world.held_out)]
    return _shuffled(world, train, valid)


def _shuffled(world: World, train: list[Row], valid: list[Row]) -> DataSet:
    random.Random(world.seed).shuffle(train)
    return DataSet(train=train, valid=valid)
