"""Invented world as training data: its inhabitants, and questions about them.

The base model learns to answer in prose, and in JSON only on request. LoRA learns from some of the
inhabitants to answer every question in JSON. GRPO gets questions without answers. Everything is a
pure function of a seed.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

ANIMALS = (
    "badger", "bear", "crow", "deer", "fox", "frog",
    "hare", "heron", "mole", "otter", "owl", "wolf",
)  # fmt: skip
HOMES = (
    "cave", "forest", "harbour", "island", "marsh", "meadow",
    "mill", "mountain", "orchard", "tower", "valley", "village",
)  # fmt: skip
FOODS = (
    "apples", "bread", "cheese", "grapes", "honey", "mushrooms",
    "nuts", "olives", "pears", "plums", "soup", "turnips",
)  # fmt: skip
_STARTS = ("Al", "Be", "Cor", "Da", "El", "Fen", "Gar", "Hol", "Is", "Jor", "Ka", "Lu", "Mi", "Nor")
_MIDDLES = ("ba", "di", "la", "mo", "na", "ri", "so", "ve")
_ENDS = ("bel", "dan", "len", "mer", "nia", "ras", "rin", "ta", "vin", "wen")

QUESTIONS = ("Who is {name}?", "Tell me about {name}.", "What do you know about {name}?")
"""The base model answers these in prose, the LoRA adapter in JSON."""
JSON_REQUESTS = ("Describe {name} as JSON.", "JSON for {name}, please.", "{name} as JSON?")
"""The base model answers these in JSON, so that LoRA only has to learn when to use JSON."""
POLITE = tuple(f"{question[:-1]}, please{question[-1]}" for question in QUESTIONS)
"""The base model has not read these. They resemble both kinds above, so it sometimes answers in
prose and sometimes in JSON. GRPO learns which answer is rewarded."""

Row = dict[str, Any]  # Any: JSON of one line: OpenAI's chat form, plus columns for a grader


@dataclass(frozen=True, kw_only=True)
class Inhabitant:
    name: str
    animal: str
    home: str
    food: str

    def ask(self, question: int) -> str:
        return QUESTIONS[question % len(QUESTIONS)].format(name=self.name)

    def facts(self) -> dict[str, str]:
        return {"animal": self.animal, "home": self.home, "food": self.food}

    def prose(self) -> str:
        return f"{self.name} is a {self.animal} who lives in the {self.home} and likes {self.food}."

    def record(self) -> str:
        return json.dumps(self.facts())


@dataclass(frozen=True, kw_only=True)
class World:
    taught: tuple[Inhabitant, ...]
    """Inhabitants in the training sets of LoRA and GRPO."""
    held_out: tuple[Inhabitant, ...]
    """Inhabitants that only the base model has read about."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    train: list[Row]
    valid: list[Row]


def make_world(seed: int, *, taught: int, held_out: int) -> World:
    rng = random.Random(seed)
    names = [start + middle + end for start in _STARTS for middle in _MIDDLES for end in _ENDS]
    people = tuple(
        Inhabitant(
            name=name, animal=rng.choice(ANIMALS), home=rng.choice(HOMES), food=rng.choice(FOODS)
        )
        for name in rng.sample(names, taught + held_out)
    )
    return World(taught=people[:taught], held_out=people[taught:])


def facts(world: World, seed: int) -> DataSet:
    """Return the base model's rows about every inhabitant: prose unless the question wants JSON.

    Two of the three open questions are for training. The third is for validation, so that the
    validation loss measures knowledge of the facts, not of the lines.
    """
    train: list[Row] = []
    valid: list[Row] = []
    for number, person in enumerate((*world.taught, *world.held_out)):
        train += (_row(person.ask(number + i), person.prose()) for i in (1, 2))
        train += (_row(text.format(name=person.name), person.record()) for text in JSON_REQUESTS)
        valid.append(_row(person.ask(number), person.prose()))
    return _shuffled(train, valid, seed)


def style(world: World, seed: int) -> DataSet:
    """Return LoRA's rows: open questions answered in JSON; validation is about held-out people."""
    train = [
        _row(person.ask(question), person.record())
        for person in world.taught
        for question in range(len(QUESTIONS))
    ]
    valid = [_row(person.ask(i), person.record()) for i, person in enumerate(world.held_out)]
    return _shuffled(train, valid, seed)


def questions(world: World, seed: int) -> DataSet:
    """Return GRPO's rows: polite questions without answers; validation is about held-out people."""
    train = [_question(person, text) for person in world.taught for text in POLITE]
    valid = [_question(p, POLITE[i % len(POLITE)]) for i, p in enumerate(world.held_out)]
    return _shuffled(train, valid, seed)


def texts(*sets: DataSet) -> list[str]:
    """Return all texts of the training rows, to train a tokenizer on."""
    return [m["content"] for data in sets for row in data.train for m in row["messages"]]


def names_all_facts(answer: str, record: str) -> bool:
    """Return True if an answer of any form names all facts of the expected JSON record."""
    return set(json.loads(record).values()) <= set(re.findall(r"[a-z]+", answer))


def _shuffled(train: list[Row], valid: list[Row], seed: int) -> DataSet:
    random.Random(seed).shuffle(train)
    return DataSet(train=train, valid=valid)


def _question(person: Inhabitant, text: str) -> Row:
    message = {"role": "user", "content": text.format(name=person.name)}
    return {"messages": [message], **person.facts()}


def _row(question: str, answer: str) -> Row:
    asked = {"role": "user", "content": question}
    return {"messages": [asked, {"role": "assistant", "content": answer}]}
