"""Evaluates the formula of a multi grader: numbers only, so that nothing in it can be large."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from .protocol import GraderError

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALL: dict[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
}


def evaluate(tree: ast.expr, scores: Mapping[str, float]) -> float:
    """Of a tree that `parse_formula` gave. Raises GraderError: a division by zero, what overflows,
    a root or logarithm that does not exist."""
    try:
        value = _evaluate(tree, scores)
    except (ArithmeticError, ValueError) as error:
        raise GraderError(f"the formula: {error}, with {_shown(scores)}") from error
    if not math.isfinite(value):
        raise GraderError(f"the formula gives {value}, with {_shown(scores)}")
    return value


def _evaluate(node: ast.expr, scores: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return scores[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, scores), _evaluate(right, scores))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return float(not _evaluate(operand, scores))
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, scores)
            return -value if isinstance(op, ast.USub) else value
        case ast.BoolOp(op=op, values=values):
            ends = isinstance(op, ast.Or)
            for part in values:
                value = _evaluate(part, scores)
                if bool(value) is ends:
                    break
            return value
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_evaluate(part, scores) for part in (left, *others)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return float(all(_COMPARE[type(op)](a, b) for op, a, b in pairs))
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluate(body if _evaluate(test, scores) else other, scores)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return float(_CALL[name](*(_evaluate(part, scores) for part in arguments)))
    raise AssertionError(f"parse_formula let {type(node).__name__} pass")


def _shown(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in scores.items())
