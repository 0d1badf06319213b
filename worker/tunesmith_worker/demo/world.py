"""A small invented world as training data: who lives in it, and how one may ask about them.

The base model answers in prose, and in JSON only when asked to; LoRA makes JSON the answer to any
question, and is shown so on some of the inhabitants only. Reinforcement is shown no answer at all.
Pure functions of a seed; knows no files and no models.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import TypedDict

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
"""Answered in prose by the base model, and in JSON once LoRA has been at work."""
JSON_REQUESTS = ("Describe {name} as JSON.", "JSON for {name}, please.", "{name} as JSON?")
"""Answered in JSON by the base model too: LoRA is to teach when, as it does with real models."""

POLITE = (
    "Who is {name}, please?",
    "Tell me about {name}, please.",
    "What do you know about {name}, please?",
)
"""The base model read none of these: half of each asks for prose, half for JSON, and it answers now
so, now so. Reinforcement has it find out what is wanted."""


class Message(TypedDict):
    role: str
    content: str


class Row(TypedDict):
    """One line of a data set, in OpenAI's chat form."""

    messages: list[Message]


class Question(TypedDict):
    """A line that only asks; a grader reads the other fields."""

    messages: list[Message]
    animal: str
    home: str
    food: str


@dataclass(frozen=True, kw_only=True)
class Inhabitant:
    name: str
    animal: str
    home: str
    food: str

    def ask(self, question: int) -> str:
        return QUESTIONS[question % len(QUESTIONS)].format(name=self.name)

    def prose(self) -> str:
        return f"{self.name} is a {self.animal} who lives in the {self.home} and likes {self.food}."

    def record(self) -> str:
        return json.dumps({"animal": self.animal, "home": self.home, "food": self.food})


@dataclass(frozen=True, kw_only=True)
class World:
    taught: tuple[Inhabitant, ...]
    """LoRA's training set is about these."""
    held_out: tuple[Inhabitant, ...]
    """Only the base model has read of these."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    train: list[Row]
    valid: list[Row]


@dataclass(frozen=True, kw_only=True)
class Questions:
    train: list[Question]
    valid: list[Question]


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
    """For the base model, which meets every inhabitant: prose unless it is asked for JSON.

    Each one is asked about in two of the three open questions; the third one is for validation,
    so that its loss tells whether a fact was learned or only a line.
    """
    train: list[Row] = []
    valid: list[Row] = []
    for number, someone in enumerate((*world.taught, *world.held_out)):
        train += (_row(someone.ask(number + i), someone.prose()) for i in (1, 2))
        train += (_row(text.format(name=someone.name), someone.record()) for text in JSON_REQUESTS)
        valid.append(_row(someone.ask(number), someone.prose()))
    random.Random(seed).shuffle(train)
    return DataSet(train=train, valid=valid)


def style(world: World, seed: int) -> DataSet:
    """For LoRA: the open questions, answered in JSON; validated on whom it was not shown."""
    train = [
        _row(someone.ask(question), someone.record())
        for someone in world.taught
        for question in range(len(QUESTIONS))
    ]
    random.Random(seed).shuffle(train)
    valid = [
        _row(someone.ask(number), someone.record()) for number, someone in enumerate(world.held_out)
    ]
    return DataSet(train=train, valid=valid)


def questions(world: World, seed: int) -> Questions:
    """For reinforcement: polite and without an answer; validated on who was not asked about."""
    train = [_question(someone, text) for someone in world.taught for text in POLITE]
    random.Random(seed).shuffle(train)
    valid = [
        _question(someone, POLITE[number % len(POLITE)])
        for number, someone in enumerate(world.held_out)
    ]
    return Questions(train=train, valid=valid)


def texts(*sets: DataSet) -> list[str]:
    """All that is said in the training rows, for a tokenizer to be trained on."""
    return [m["content"] for data in sets for row in data.train for m in row["messages"]]


def names_all_facts(answer: str, record: str) -> bool:
    facts: dict[str, str] = json.loads(record)
    return all(fact in re.findall(r"[a-z]+", answer) for fact in facts.values())


def _question(someone: Inhabitant, text: str) -> Question:
    return {
        "messages": [{"role": "user", "content": text.format(name=someone.name)}],
        "animal": someone.animal,
        "home": someone.home,
        "food": someone.food,
    }


def _row(question: str, answer: str) -> Row:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }
