"""Arithmetic in data files: `max(8192, isl + concurrency)` over a row's own counts."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any


OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def at_most(bound: int, *steps: int) -> int:
    """The largest of the steps that is no larger than `bound`; the smallest if none is."""
    return max((step for step in steps if step <= bound), default=min(steps))


FUNCTIONS: dict[str, Callable[..., Any]] = {"max": max, "min": min, "at_most": at_most}


def evaluate(formula: str, names: Mapping[str, int]) -> int:
    """The value of a formula of whole numbers, names, `+ - * //`, `max`, `min`, `at_most`; else `ValueError`."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return int(OPERATORS[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            return int(FUNCTIONS[node.func.id](*map(value, node.args)))
        raise ValueError(
            f"a formula has whole numbers, + - * //, max, min, at_most and {', '.join(names)}, got {formula!r:.60}."
        )

    try:
        tree = ast.parse(formula, mode="eval")
    except SyntaxError:
        raise ValueError(f"a formula is wanted, got {formula!r:.60}.") from None
    return value(tree.body)
