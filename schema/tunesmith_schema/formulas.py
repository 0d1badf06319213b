"""Formulas of multi graders: which expressions are allowed. Evaluating them is the worker's."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection

FUNCTIONS = ("min", "max", "abs", "floor", "ceil", "exp", "log", "sqrt")
"""What may be called: min and max with one value or more, the others with one."""
_DEEPEST = 100
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod, ast.UAdd, ast.USub, ast.Not, ast.And,
    ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Load,
)  # fmt: skip
_SHAPES = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Constant,
)  # fmt: skip


def parse_formula(formula: str, names: Collection[str]) -> ast.expr:
    """The tree, of nothing but what is allowed. `^` is a power, as OpenAI writes it. ValueError:
    what is not allowed, or is no name in `names`."""
    try:
        tree = ast.parse(formula.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        what = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
        raise ValueError(f"'{_short(formula)}' is no formula: {what}") from error
    for node in _expressions(tree, formula):
        _check(node, names)
    return tree


def used_names(tree: ast.expr) -> frozenset[str]:
    """The graders that a formula reads."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
    )


def _expressions(tree: ast.expr, formula: str) -> list[ast.expr]:
    """The tree's, but for the names of functions."""
    level, found, depth = [tree], list[ast.expr](), 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"'{_short(formula)}' is nested more than {_DEEPEST} deep")
        found += level
        level = [
            child
            for node in level
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
            and not (isinstance(node, ast.Call) and child is node.func)
        ]
    return found


def _check(node: ast.expr, names: Collection[str]) -> None:
    if not isinstance(node, _SHAPES):
        raise ValueError(f"a formula has no {type(node).__name__}: '{_short(ast.unparse(node))}'")
    operators = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]
    if not all(isinstance(n, (*_OPERATORS, ast.keyword)) for n in operators):
        known = "+ - * / ** % == != < <= > >= and or not"
        raise ValueError(f"'{_short(ast.unparse(node))}' has an operator that is none of {known}")
    if isinstance(node, ast.Constant) and (
        type(node.value) not in (int, float) or not _is_finite(node.value)
    ):
        raise ValueError(f"a formula's constants are numbers, not {_short(repr(node.value))}")
    if isinstance(node, ast.Name) and node.id not in names:
        raise ValueError(f"'{_short(node.id)}' is no grader of these: {', '.join(sorted(names))}")
    if isinstance(node, ast.Call):
        _check_call(node)


def _check_call(node: ast.Call) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name not in FUNCTIONS:
        raise ValueError(
            f"'{_short(ast.unparse(node.func))}' is no function of these: {', '.join(FUNCTIONS)}"
        )
    many = name in ("min", "max")
    if node.keywords or not node.args or (len(node.args) > 1 and not many):
        takes = "one value or more" if many else "one value"
        raise ValueError(f"{name} takes {takes}: '{_short(ast.unparse(node))}'")


def _is_finite(value: object) -> bool:
    try:
        return math.isfinite(float(str(value)))
    except (ValueError, OverflowError):  # a whole number of thousands of digits
        return False


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
