"""Parser for the formulas of multi graders, with a fixed set of allowed expressions. The worker
evaluates the formulas."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection

FUNCTIONS = ("min", "max", "abs", "floor", "ceil", "exp", "log", "sqrt")
"""Functions that a formula may call; `min` and `max` take one or more arguments, all others exactly
one."""
_MAX_DEPTH = 100
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod, ast.UAdd, ast.USub, ast.Not, ast.And,
    ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Load,
)  # fmt: skip
_SHAPES = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Constant,
)  # fmt: skip


def parse_formula(formula: str, names: Collection[str]) -> ast.expr:
    """Parse a formula into a syntax tree of Python's `ast`; `^` means power, as in OpenAI's
    formulas.

    `names` lists the graders that the formula may use. Raises ValueError that quotes the first part
    that a formula may not contain.
    """
    try:
        tree = ast.parse(formula.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
        raise ValueError(f"'{_short(formula)}' is not a valid formula: {reason}") from error
    for node in _expressions(tree, formula):
        _check(node, names)
    return tree


def used_names(tree: ast.expr) -> frozenset[str]:
    """Return the names of the graders that a formula uses."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
    )


def _expressions(tree: ast.expr, formula: str) -> list[ast.expr]:
    level, expressions, depth = [tree], list[ast.expr](), 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"'{_short(formula)}' is nested more than {_MAX_DEPTH} levels deep")
        expressions += level
        level = [
            child
            for node in level
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
            and not (isinstance(node, ast.Call) and child is node.func)
        ]
    return expressions


def _check(node: ast.expr, names: Collection[str]) -> None:
    if not isinstance(node, _SHAPES):
        raise ValueError(
            f"{type(node).__name__} is not allowed in a formula: '{_short(ast.unparse(node))}'"
        )
    operators = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]
    if not all(isinstance(n, (*_OPERATORS, ast.keyword)) for n in operators):
        known = "+ - * / ** % == != < <= > >= and or not"
        raise ValueError(
            f"'{_short(ast.unparse(node))}' uses an unknown operator; the operators are {known}"
        )
    if isinstance(node, ast.Constant) and (
        type(node.value) not in (int, float) or not _is_finite(node.value)
    ):
        raise ValueError(f"constants must be finite numbers, not {_short(repr(node.value))}")
    if isinstance(node, ast.Name) and node.id not in names:
        known = ", ".join(sorted(names))
        raise ValueError(f"'{_short(node.id)}' is not a grader; the graders are {known}")
    if isinstance(node, ast.Call):
        _check_call(node)


def _check_call(node: ast.Call) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name not in FUNCTIONS:
        raise ValueError(
            f"'{_short(ast.unparse(node.func))}' is not a function; the functions are "
            f"{', '.join(FUNCTIONS)}"
        )
    variadic = name in ("min", "max")
    if node.keywords or not node.args or (len(node.args) > 1 and not variadic):
        takes = "one or more arguments" if variadic else "exactly one argument"
        raise ValueError(f"{name} takes {takes}: '{_short(ast.unparse(node))}'")


def _is_finite(value: object) -> bool:
    try:
        return math.isfinite(float(str(value)))
    except (ValueError, OverflowError):  # an integer with thousands of digits
        return False


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
