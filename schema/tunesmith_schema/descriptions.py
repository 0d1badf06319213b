"""Descriptions of fields from the docstrings below them.

`use_attribute_docstrings` of pydantic gives the same descriptions, but searches and parses the
source of each class, which took a fifth of each command's start time. Here each module is parsed
once.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


def describe_fields(model: type[BaseModel]) -> None:
    """Set the description of each field that has a docstring and no other description."""
    texts = _texts_of(model.__module__).get(model.__qualname__, {})
    for name, field in model.__pydantic_fields__.items():
        if field.description is None and name in texts:
            field.description = texts[name]


@cache
def _texts_of(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields by class and field; empty if there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {
        node.name: dict(_texts_in(node.body))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _texts_in(body: list[ast.stmt]) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(text.value.value))
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]
