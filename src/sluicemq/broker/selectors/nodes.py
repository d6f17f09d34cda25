"""What a selector says, as a tree: made by the reader, read by the compiler.

A *value* is a Literal, an Identifier, Arithmetic or Minus; a *condition* is one of the others, or
an Identifier or Literal that is boolean. `position` is the 0-based offset in the text at which the
node begins, `depth` how many nodes and parentheses are inside one another at most, `size` how many
nodes it has with all that are inside it. An evaluation costs at most some tenths of a microsecond
for each node, so that the strings of IN count as nodes, and parts of patterns that are slower to
find count as several (pattern.weight).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluicemq.broker.selectors.pattern import Part

Value = bool | int | float | str | None
"""What a value comes to; None is NULL."""


@dataclass(slots=True)
class Node:
    """Any part of a selector."""

    position: int
    depth: int = field(default=1, init=False)
    size: int = field(default=1, init=False)


@dataclass(slots=True)
class Literal(Node):
    """A constant, or what constants have been folded to."""

    value: Value


@dataclass(slots=True)
class Identifier(Node):
    """A property or header field."""

    name: str


@dataclass(slots=True)
class Arithmetic(Node):
    """`first`, then each operator (+ - * /) with its operand, from left to right."""

    first: Node
    rest: list[tuple[str, Node]]


@dataclass(slots=True)
class Minus(Node):
    """The operand with its sign changed."""

    operand: Node


@dataclass(slots=True)
class Comparison(Node):
    """`operator` is one of = <> < <= > >=."""

    operator: str
    left: Node
    right: Node


@dataclass(slots=True)
class Within(Node):
    """The identifier is one of the strings."""

    operand: Identifier
    strings: frozenset[str]


@dataclass(slots=True)
class Like(Node):
    """The identifier matches a pattern."""

    operand: Identifier
    pattern: list[Part]


@dataclass(slots=True)
class Null(Node):
    """The identifier has no value."""

    operand: Identifier


@dataclass(slots=True)
class Not(Node):
    """The operand is false."""

    operand: Node


@dataclass(slots=True)
class All(Node):
    """The operands of AND."""

    operands: list[Node]


@dataclass(slots=True)
class Any(Node):
    """The operands of OR."""

    operands: list[Node]
