"""Selectors as trees, written out and evaluated exactly as JMS 1.1 section 3.8.1 defines.

The broker's code is not used, because it is compared with this module. A tree is a tuple of an
operator and its operands.
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


def _pattern_is_whole(tree: Tree) -> bool:
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
    ).filter(_pattern_is_whole)
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

# --- writing ---------------------------------------------------------------------------------

_BINDING = {"or": 1, "and": 2, "not": 3, "+": 5, "-": 5, "*": 6, "/": 6, "minus": 7, "plus": 7}
"""Precedence of operators; other conditions have 4, values without an operator 8."""


def write(tree: Tree, least: int = 0) -> str:
    """Return the text of a tree, with the required parentheses."""
    kind = tree[0]
    binding = _BINDING.get(kind, 8 if kind in ("name", "literal") else 4)
    text = _write(tree, binding)
    return f"({text})" if binding < least else text


def _write(tree: Tree, binding: int) -> str:
    kind, *operands = tree
    if kind == "name":
        return str(operands[0])
    if kind == "literal":
        return _literal(operands[0])
    if kind == "not":
        return f"NOT {write(operands[0], binding)}"
    if kind in ("minus", "plus"):
        return f"{'-' if kind == 'minus' else '+'}{write(operands[0], binding)}"
    if kind in _BINDING:
        left, right = operands
        # to the right of an equal one there have to be parentheses
        return f"{write(left, binding)} {kind.upper()} {write(right, binding + 1)}"
    if kind in ("between", "not between"):
        operand, low, high = (write(part, 5) for part in operands)
        return f"{operand} {kind.upper()} {low} AND {high}"
    subject = write(operands[0], 5)
    if kind in ("null", "not null"):
        return f"{subject} IS {kind.upper()}"
    if kind in ("in", "not in"):
        return f"{subject} {kind.upper()} ({', '.join(map(_literal, operands[1]))})"
    if kind in ("like", "not like"):
        escape = f" ESCAPE {_literal(operands[2])}" if operands[2] else ""
        return f"{subject} {kind.upper()} {_literal(operands[1])}{escape}"
    return f"{subject} {kind} {write(operands[1], 5)}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


# --- evaluating ------------------------------------------------------------------------------


def evaluate(tree: Tree, found: dict[str, Property]) -> bool | None:
    """Return TRUE, FALSE or None for UNKNOWN."""
    kind, *operands = tree
    if kind == "not":
        return _not(evaluate(operands[0], found))
    if kind == "and":
        answers = {evaluate(operand, found) for operand in operands}
        return False if False in answers else None if None in answers else True
    if kind == "or":
        answers = {evaluate(operand, found) for operand in operands}
        return True if True in answers else None if None in answers else False
    if kind in ("name", "literal"):
        return _compare("=", _value(tree, found), True)
    if kind == "between":
        operand, low, high = operands
        return evaluate(("and", (">=", operand, low), ("<=", operand, high)), found)
    if kind == "not between":
        operand, low, high = operands
        return evaluate(("or", ("<", operand, low), (">", operand, high)), found)
    if kind.startswith("not "):
        return _not(evaluate((kind.removeprefix("not "), *operands), found))
    value = _value(operands[0], found)
    if kind == "null":
        return value is None
    if kind == "in":
        return None if value is None else value in operands[1]
    if kind == "like":
        if value is None:
            return None
        return isinstance(value, str) and _like(value, operands[1], operands[2])
    return _compare(kind, value, _value(operands[1], found))


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


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


def _compare(kind: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if _type(left) != _type(right):
        return False
    if _type(left) == "number":
        left, right = _promote(left, right)
    elif kind not in ("=", "<>"):
        return False
    return {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[kind]


def _value(tree: Tree, found: dict[str, Property]) -> Any:
    kind, *operands = tree
    if kind == "literal":
        return operands[0]
    if kind == "name":
        value = found.get(operands[0])
        return None if isinstance(value, bytes) else value
    values = [_value(operand, found) for operand in operands]
    if any(value is None or _type(value) != "number" for value in values):
        return None
    if kind == "plus":
        return values[0]
    if kind == "minus":
        return _java(-values[0])
    left, right = _promote(*values)
    if kind == "/":
        if right == 0:
            return None
        if isinstance(left, float):
            return left / right
        quotient = abs(left) // abs(right)
        return _java(quotient if left * right >= 0 else -quotient)
    return _java(left + right if kind == "+" else left - right if kind == "-" else left * right)


def _java(number: Any) -> Any:
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
