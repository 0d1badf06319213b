"""Evaluation of a multi grader's formula."""

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
    """Evaluate the syntax tree that `parse_formula` returned.

    Raises GraderError for a division by zero, an overflow, an undefined root or logarithm.
    """
    try:
        value = _evaluate(tree, scores)
    except (ArithmeticError, ValueError) as error:
        raise GraderError(
            f"the formula cannot be computed: {error}, with {_format_scores(scores)}"
        ) from error
    if not math.isfinite(value):
        raise GraderError(f"the formula's value is {value}, with {_format_scores(scores)}")
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
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [_evaluate(part, scores) for part in (left, *comparators)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return float(all(_COMPARE[type(op)](a, b) for op, a, b in pairs))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, scores) else orelse, scores)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return float(_CALL[name](*(_evaluate(part, scores) for part in arguments)))
    raise AssertionError(f"parse_formula does not reject {type(node).__name__}")


def _format_scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in scores.items())
