"""Syntax tree of a selector, built by the reader and compiled by the compiler.

A *value* is a Literal, an Identifier, Arithmetic or Minus; a *condition* is one of the others, or a
boolean Identifier or Literal. `position` is the 0-based offset in the text at which the node
begins, `depth` the largest nesting of nodes and parentheses, `size` the number of nodes including
all nested ones. An evaluation costs at most some tenths of a microsecond for each node; therefore
the strings of IN count as nodes, and parts of patterns that are slower to search count as several
(`pattern_weight`).

In a LIKE pattern (JMS 1.1 section 3.8.1.1) % matches any characters, _ one, line ends included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

MAX_PATTERN: Final = 1024
"""Longest pattern, in characters."""
PART_WEIGHT: Final = 8
"""Nodes counted for a part between two %, which is searched for in the whole value."""
CHARACTER_WEIGHT: Final = 8
"""Nodes counted for each character of such a part if it contains a _.

All of them may be compared at each position of the value.
"""


class Wildcard(Enum):
    """Wildcard of a pattern."""

    ONE = "_"
    ANY = "%"


Part = str | Wildcard
"""Literal characters, or a wildcard."""


def split_pattern(pattern: str, escape: str) -> list[Part]:
    """Split a pattern into parts. A character after `escape` ("" = none) is literal.

    Raises ValueError with a description if nothing follows an escape or the pattern is too long.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern of at most {MAX_PATTERN} characters")
    parts: list[Part] = []
    plain = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, "")
            if not literal:
                raise ValueError(f"a character after the escape {escape} that ends the pattern")
            plain += literal
        elif character in "%_":
            if plain:
                parts.append(plain)
                plain = ""
            wildcard = Wildcard(character)
            if wildcard is Wildcard.ONE or parts[-1:] != [wildcard]:
                parts.append(wildcard)
        else:
            plain += character
    if plain:
        parts.append(plain)
    return parts


def matcher(parts: list[Part]) -> Callable[[str], object]:
    """Return a function whose result is true if a whole string matches."""
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts)).__eq__
    match parts:
        case [str(prefix), Wildcard.ANY]:
            return lambda value: value.startswith(prefix)
        case [Wildcard.ANY, str(suffix)]:
            return lambda value: value.endswith(suffix)
        case [Wildcard.ANY, str(infix), Wildcard.ANY]:
            return lambda value: infix in value
    if Wildcard.ANY not in parts:
        return re.compile(_expression(parts), re.DOTALL).fullmatch
    return _Matcher(parts)


def pattern_weight(parts: list[Part]) -> int:
    """Return the number of nodes that a pattern counts, in addition to its LIKE."""
    total = 0
    for run in _runs(parts)[1:-1]:
        total += PART_WEIGHT
        if Wildcard.ONE in run:
            total += CHARACTER_WEIGHT * _length(run)
    return total


def _runs(parts: list[Part]) -> list[list[Part]]:
    """Return the parts between the % wildcards."""
    runs: list[list[Part]] = [[]]
    for part in parts:
        if part is Wildcard.ANY:
            runs.append([])
        else:
            runs[-1].append(part)
    return runs


def _length(run: list[Part]) -> int:
    """Return the number of characters that a run matches."""
    return sum(len(part) if isinstance(part, str) else 1 for part in run)


def _expression(run: list[Part]) -> str:
    return "".join(re.escape(part) if isinstance(part, str) else "." for part in run)


class _Matcher:
    """Matcher of the runs of a pattern with % from left to right, each at its first match.

    Between two % the first match is as good as any other, so there is no backtracking. Runs without
    _ are found by `str.find` in linear time.
    """

    __slots__ = ("_ending", "_ending_length", "_middle", "_start", "_start_length")

    def __init__(self, parts: list[Part]) -> None:
        first, *middle, ending = _runs(parts)
        self._start = re.compile(_expression(first), re.DOTALL)
        self._start_length = _length(first)
        self._ending = re.compile(_expression(ending), re.DOTALL)
        self._ending_length = _length(ending)
        self._middle: list[tuple[str | re.Pattern[str], int]] = []
        for run in middle:
            plain = [part for part in run if isinstance(part, str)]
            needle = re.compile(_expression(run), re.DOTALL) if plain != run else "".join(plain)
            self._middle.append((needle, _length(run)))

    def __call__(self, value: str) -> bool:
        if self._start.match(value) is None:
            return False
        position = self._start_length
        for part, length in self._middle:
            if isinstance(part, str):
                position = value.find(part, position)
            else:
                match = part.search(value, position)
                position = -1 if match is None else match.start()
            if position < 0:
                return False
            position += length
        end = len(value) - self._ending_length
        return end >= position and self._ending.match(value, end) is not None


Value = bool | int | float | str | None
"""Value of an expression; None is NULL."""


@dataclass(slots=True)
class Node:
    """Node of a selector."""

    position: int
    depth: int = field(default=1, init=False)
    size: int = field(default=1, init=False)


@dataclass(slots=True)
class Literal(Node):
    """Constant, or result of constant folding."""

    value: Value


@dataclass(slots=True)
class Identifier(Node):
    """Property or header field."""

    name: str


@dataclass(slots=True)
class Arithmetic(Node):
    """Arithmetic: `first`, then each operator (+ - * /) with its operand, from left to right."""

    first: Node
    rest: list[tuple[str, Node]]


@dataclass(slots=True)
class Minus(Node):
    """Negation of the operand."""

    operand: Node


@dataclass(slots=True)
class Comparison(Node):
    """Comparison; `operator` is one of = <> < <= > >=."""

    operator: str
    left: Node
    right: Node


@dataclass(slots=True)
class Within(Node):
    """IN: the identifier is one of the strings."""

    operand: Identifier
    strings: frozenset[str]


@dataclass(slots=True)
class Like(Node):
    """LIKE: the identifier matches a pattern."""

    operand: Identifier
    pattern: list[Part]


@dataclass(slots=True)
class Null(Node):
    """IS NULL: the identifier has no value."""

    operand: Identifier


@dataclass(slots=True)
class Not(Node):
    """NOT: the operand is FALSE."""

    operand: Node


@dataclass(slots=True)
class All(Node):
    """Conjunction: the operands of AND."""

    operands: list[Node]


@dataclass(slots=True)
class Any(Node):
    """Disjunction: the operands of OR."""

    operands: list[Node]
