"""Equalities that every message matched by a selector fulfils.

For `id = 17 AND price > 3` it is `id = 17`: a topic need not evaluate the selector for messages
with another id (routing.py). Where numbers are promoted, equal values must be equal dictionary
keys; beyond 2**53 they are not, since 2**53 + 1 is equal to the double 2**53 there. And True must
differ from 1. So a `bucket` is not always the value itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq.broker.selectors.nodes import (
    All,
    Any,
    Comparison,
    Identifier,
    Literal,
    Node,
    Value,
    Within,
)

MAX_VALUES: Final = 64
"""Largest number of alternatives that are indexed."""

_EXACT_DOUBLES: Final = 2**53

Bucket = str | int | float | tuple[bool] | None
"""Dictionary key: equal for two values that a selector considers equal, and for no others.

The key of NULL is None, which no equality requires.
"""


class Equality(NamedTuple):
    """Requirement that `field` has one of the values represented by `buckets`."""

    field: str
    buckets: frozenset[Bucket]


def bucket_of(value: Value) -> Bucket:
    """Return the key for a message's value."""
    return (value,) if isinstance(value, bool) else value


def equalities(condition: Node) -> tuple[Equality, ...]:
    """Return the equalities, each of which is necessary by itself, in the order of the text."""
    return tuple(Equality(field, buckets) for field, buckets in _necessary(condition).items())


def _necessary(node: Node) -> dict[str, frozenset[Bucket]]:
    match node:
        case All(operands=operands):
            fields: dict[str, frozenset[Bucket]] = {}
            for operand in operands:
                for field, buckets in _necessary(operand).items():
                    fields[field] = fields[field] & buckets if field in fields else buckets
            return fields
        case Any(operands=operands):
            return _alternatives([_necessary(operand) for operand in operands])
        case Within():
            if len(node.strings) <= MAX_VALUES:
                return {node.operand.name: frozenset(node.strings)}
        case Identifier():
            return {node.name: frozenset(((True,),))}
        case Comparison(operator="=", left=Identifier(name=name), right=Literal(value=value)) | (
            Comparison(operator="=", left=Literal(value=value), right=Identifier(name=name))
        ):
            if not (isinstance(value, int | float) and abs(value) >= _EXACT_DOUBLES):
                return {name: frozenset(() if value is None else (bucket_of(value),))}
    return {}


def _alternatives(branches: list[dict[str, frozenset[Bucket]]]) -> dict[str, frozenset[Bucket]]:
    """Return the fields that occur in every branch, with all of their values."""
    fields = {}
    for field in branches[0]:
        if all(field in branch for branch in branches):
            union = frozenset().union(*(branch[field] for branch in branches))
            if len(union) <= MAX_VALUES:
                fields[field] = union
    return fields
