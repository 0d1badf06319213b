"""Fields are described by the docstrings below them, and a model is built at its first use."""

from __future__ import annotations

from pydantic import BaseModel, Field

from tunesmith_schema import Request, Response


class Told(Request):
    kind: int
    """What it is,
    in two lines."""
    named: int = Field(default=1, description="By `Field`.")
    """Not this."""
    bare: int = 1

    def method(self) -> None:
        """Not of a field."""

    other: int = 1
    """Of a field after a method."""


class More(Told):
    kind: int = 3
    added: str = ""
    """Of the subclass."""


def test_a_docstring_describes_the_field_above_it() -> None:
    assert {name: field.description for name, field in More.model_fields.items()} == {
        "kind": None,
        "named": "By `Field`.",
        "bare": None,
        "other": "Of a field after a method.",
        "added": "Of the subclass.",
    }
    assert Told.model_fields["kind"].description == "What it is,\nin two lines."


def test_a_class_without_source_has_no_descriptions() -> None:
    made: dict[str, type[BaseModel]] = {}
    exec("class Made(Base):\n    a: int\n    'Text.'\n", {"Base": Response, "__name__": "no"}, made)
    assert made["Made"].model_fields["a"].description is None


def test_a_model_is_built_at_its_first_use() -> None:
    """So that a command does not build two hundred models at its start."""
    assert not Told.__pydantic_complete__
    assert Told(kind=1).kind == 1
    assert Told.__pydantic_complete__
    assert Told.model_json_schema()["properties"]["kind"]["description"].startswith("What it is")
