"""Syntax tree of a selector, built by the reader and compiled by the compiler.

A *value* is a Literal, an Identifier, Arithmetic or Minus; a *condition* is one of the others, or a
boolean Identifier or Literal. `position` is the 0-based offset in the text at which the node
begins, `depth` the largest nesting of nodes and parentheses, `size` the number of nodes including
all nested ones. An evaluation costs at most some tenths of a microsecond for each node; therefore
the strings of IN count as nodes, and parts of patterns that are slower to search count as several
(pattern.weight).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluicemq.broker.selectors.pattern import Part

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
