"""Selectors as trees: conversion to text, and evaluation as JMS 1.1 section 3.8.1 defines.

This module uses no code of the broker, because the broker is compared with it.
A tree is a tuple of an operator and its operands.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from sluicemq.model.message import Property

Tree = tuple[Any, ...]

NAMES = ("a", "b", "c", "d")

_LONG = 2**63

strings = st.sampled_from(["", "x", "xy", "yx", "it's", "x\ny", "%", "_x", "x%y"])
exact = st.integers(-4, 4) | st.sampled_from(
    [2**53 - 1, 2**53, 2**53 + 1, _LONG - 1, -_LONG + 1, 10**12]
)
approximate = st.sampled_from([0.0, -1.0, 1.0, 2.0, 2.5, 1e300, 2.0**53, 4e18, 0.1])
values: st.SearchStrategy[Property] = (
    st.none()
    | st.booleans()
    | exact
    | approximate
    | strings
    | st.sampled_from([b"x", math.nan, math.inf, 10**400])
)
properties = st.none() | st.dictionaries(st.sampled_from(NAMES), values)

identifiers: st.SearchStrategy[Tree] = st.tuples(st.just("name"), st.sampled_from(NAMES))
numbers: st.SearchStrategy[Tree] = st.tuples(st.just("literal"), exact | approximate)
_numeric = st.recursive(
    identifiers | numbers,
    lambda inner: (
        st.tuples(st.sampled_from("+-*/"), inner, inner)
        | st.tuples(st.just("minus"), inner)
        | st.tuples(st.just("plus"), inner)
    ),
    max_leaves=4,
)
_literals = st.tuples(st.just("literal"), strings | st.booleans())
_patterns = st.text("xy%_!\n", max_size=6)


def _escape_is_complete(tree: Tree) -> bool:
    _, _, pattern, escape = tree
    return not escape or not (len(pattern) - len(pattern.rstrip("!"))) % 2


comparisons: st.SearchStrategy[Tree] = (
    st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), _numeric, _numeric)
    | st.tuples(
        st.sampled_from(["=", "<>"]), identifiers | _literals, identifiers | _literals | numbers
    )
    | st.tuples(st.just("between"), _numeric, _numeric, _numeric)
    | st.tuples(st.just("not between"), _numeric, _numeric, _numeric)
    | st.tuples(
        st.sampled_from(["in", "not in"]), identifiers, st.lists(strings, min_size=1, max_size=3)
    )
    | st.tuples(
        st.sampled_from(["like", "not like"]), identifiers, _patterns, st.sampled_from(["", "!"])
    ).filter(_escape_is_complete)
    | st.tuples(st.sampled_from(["null", "not null"]), identifiers)
    | identifiers
    | st.tuples(st.just("literal"), st.booleans())
)
conditions: st.SearchStrategy[Tree] = st.recursive(
    comparisons,
    lambda inner: (
        st.tuples(st.sampled_from(["and", "or"]), inner, inner) | st.tuples(st.just("not"), inner)
    ),
    max_leaves=8,
)

# --- conversion to text ----------------------------------------------------------------------

_PRECEDENCE = {"or": 1, "and": 2, "not": 3, "+": 5, "-": 5, "*": 6, "/": 6, "minus": 7, "plus": 7}
"""Precedence of operators; other conditions have 4, values without an operator 8."""


def to_text(tree: Tree, min_precedence: int = 0) -> str:
    """Return the text of a tree, with the required parentheses."""
    operator = tree[0]
    precedence = _PRECEDENCE.get(operator, 8 if operator in ("name", "literal") else 4)
    text = _format(tree, precedence)
    return f"({text})" if precedence < min_precedence else text


def _format(tree: Tree, precedence: int) -> str:
    operator, *operands = tree
    if operator == "name":
        return str(operands[0])
    if operator == "literal":
        return _literal(operands[0])
    if operator == "not":
        return f"NOT {to_text(operands[0], precedence)}"
    if operator in ("minus", "plus"):
        return f"{'-' if operator == 'minus' else '+'}{to_text(operands[0], precedence)}"
    if operator in _PRECEDENCE:
        left, right = operands
        # operators are left-associative: on the right, equal precedence needs parentheses
        return f"{to_text(left, precedence)} {operator.upper()} {to_text(right, precedence + 1)}"
    if operator in ("between", "not between"):
        operand, low, high = (to_text(part, 5) for part in operands)
        return f"{operand} {operator.upper()} {low} AND {high}"
    subject = to_text(operands[0], 5)
    if operator in ("null", "not null"):
        return f"{subject} IS {operator.upper()}"
    if operator in ("in", "not in"):
        return f"{subject} {operator.upper()} ({', '.join(map(_literal, operands[1]))})"
    if operator in ("like", "not like"):
        escape = f" ESCAPE {_literal(operands[2])}" if operands[2] else ""
        return f"{subject} {operator.upper()} {_literal(operands[1])}{escape}"
    return f"{subject} {operator} {to_text(operands[1], 5)}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


# --- evaluation ------------------------------------------------------------------------------


def evaluate(tree: Tree, message_properties: dict[str, Property]) -> bool | None:
    """Return TRUE, FALSE or None for UNKNOWN."""
    operator, *operands = tree
    if operator == "not":
        return _not(evaluate(operands[0], message_properties))
    if operator == "and":
        results = {evaluate(operand, message_properties) for operand in operands}
        return False if False in results else None if None in results else True
    if operator == "or":
        results = {evaluate(operand, message_properties) for operand in operands}
        return True if True in results else None if None in results else False
    if operator in ("name", "literal"):
        return _compare("=", _value(tree, message_properties), True)
    if operator == "between":
        operand, low, high = operands
        return evaluate(("and", (">=", operand, low), ("<=", operand, high)), message_properties)
    if operator == "not between":
        operand, low, high = operands
        return evaluate(("or", ("<", operand, low), (">", operand, high)), message_properties)
    if operator.startswith("not "):
        return _not(evaluate((operator.removeprefix("not "), *operands), message_properties))
    value = _value(operands[0], message_properties)
    if operator == "null":
        return value is None
    if operator == "in":
        return None if value is None else value in operands[1]
    if operator == "like":
        if value is None:
            return None
        return isinstance(value, str) and _like(value, operands[1], operands[2])
    return _compare(operator, value, _value(operands[1], message_properties))


def _not(result: bool | None) -> bool | None:
    return None if result is None else not result


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def _promote(left: Any, right: Any) -> tuple[Any, Any]:
    if isinstance(left, int) and isinstance(right, int):
        return left, right
    return _double(left), _double(right)


def _double(value: Any) -> float:
    return math.inf if value == 10**400 else float(value)


def _compare(operator: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if _type(left) != _type(right):
        return False
    if _type(left) == "number":
        left, right = _promote(left, right)
    elif operator not in ("=", "<>"):
        return False
    return {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]


def _value(tree: Tree, message_properties: dict[str, Property]) -> Any:
    operator, *operands = tree
    if operator == "literal":
        return operands[0]
    if operator == "name":
        value = message_properties.get(operands[0])
        return None if isinstance(value, bytes) else value
    values = [_value(operand, message_properties) for operand in operands]
    if any(value is None or _type(value) != "number" for value in values):
        return None
    if operator == "plus":
        return values[0]
    if operator == "minus":
        return _wrap_long(-values[0])
    left, right = _promote(*values)
    if operator == "/":
        if right == 0:
            return None
        if isinstance(left, float):
            return left / right
        quotient = abs(left) // abs(right)
        return _wrap_long(quotient if left * right >= 0 else -quotient)
    return _wrap_long(
        left + right if operator == "+" else left - right if operator == "-" else left * right
    )


def _wrap_long(number: Any) -> Any:
    """Wrap around as a Java long."""
    if isinstance(number, float):
        return number
    number &= 2 * _LONG - 1
    return number - 2 * _LONG if number >= _LONG else number


def _like(text: str, pattern: str, escape: str) -> bool:
    if not pattern:
        return not text
    if escape and pattern[0] == escape:
        return text[:1] == pattern[1] and _like(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(_like(text[skip:], pattern[1:], escape) for skip in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _like(text[1:], pattern[1:], escape)
