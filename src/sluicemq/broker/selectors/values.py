"""Values in selectors: fields of a message, and numbers with Java's semantics.

Header fields follow JMS 1.1 section 3.8.1.1: six of them may be used. JMSMessageID,
JMSCorrelationID and JMSType are NULL if the message has none. Every other identifier is a property;
names that begin with JMS must begin with JMSX or JMS_. A property that does not exist, or has bytes
for a value, is NULL. `content_HYPHEN_type` is also the header `content-type` of another protocol
(model/identifiers.py). A dead letter has Open MQ's properties, JMS_SUN_DMQ_..., which are derived
(model/dead_letters.py).

Exact numbers are long, approximate ones are double. JMS leaves overflow and division to Java: long
wraps around, and its division truncates towards zero. A division by zero and arithmetic with values
that are not numbers give NULL.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Final, TypeGuard

from sluicemq.broker.selectors.nodes import Value
from sluicemq.model.dead_letters import DMQ_PROPERTIES, dmq_property
from sluicemq.model.identifiers import from_identifier
from sluicemq.model.message import Message

Read = Callable[["Message"], Value]


HEADER: Final[dict[str, Read]] = {
    "JMSDeliveryMode": lambda message: (
        "PERSISTENT" if message.durability.survives else "NON_PERSISTENT"
    ),
    "JMSPriority": attrgetter("priority"),
    "JMSTimestamp": attrgetter("timestamp"),
    "JMSMessageID": lambda message: message.message_id or None,
    "JMSCorrelationID": lambda message: message.correlation_id or None,
    "JMSType": lambda message: message.type or None,
}


def reserved(name: str) -> bool:
    """Return whether the name is reserved by JMS and not permitted in selectors."""
    return name.startswith("JMS") and not (name in HEADER or name.startswith(("JMSX", "JMS_")))


def reader(name: str) -> Read:
    """Return a function that reads the field or property of that name."""
    if name in DMQ_PROPERTIES:
        return lambda message: _comparable(dmq_property(message.properties, name))
    return HEADER.get(name) or _property(name)


def is_field(name: str) -> bool:
    """Return whether reading the name takes more than a lookup of one property."""
    return name in HEADER or name in DMQ_PROPERTIES or from_identifier(name) != name


def _property(name: str) -> Read:
    foreign_name = from_identifier(name)

    def read(message: Message) -> Value:
        properties = message.properties
        if properties is None:
            return None
        value = properties.get(name)
        if value is None and foreign_name != name:
            value = properties.get(foreign_name)
        return None if isinstance(value, bytes) else value

    return read


def _comparable(value: Value | bytes) -> Value:
    return None if isinstance(value, bytes) else value


LONG_BITS: Final = 64
LONG_LIMIT: Final = 1 << LONG_BITS - 1
"""Smallest positive number that is not a long."""

_OPERATIONS: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


NUMBERS: Final = (int, float)
"""Types of exact and approximate numbers.

A Boolean is neither, although it is an int in Python, so types are compared without isinstance.
"""


def is_number(value: Value) -> TypeGuard[int | float]:
    """Return whether the value is an exact or approximate number."""
    return type(value) in NUMBERS


def long(value: int) -> int:
    """Return the integer wrapped to Java's long."""
    if -LONG_LIMIT <= value < LONG_LIMIT:
        return value
    return (value + LONG_LIMIT) % (1 << LONG_BITS) - LONG_LIMIT


def double(value: float) -> float:
    """Return the number as a double, by Java's promotion."""
    try:
        return float(value)
    except OverflowError:  # a property of another protocol, far beyond long
        return math.inf if value > 0 else -math.inf


def calculate(symbol: str, left: Value, right: Value) -> Value:
    """Return the result of + - * or /, or NULL as described in the module."""
    if not (is_number(left) and is_number(right)):
        return None
    exact = type(left) is type(right) is int
    if not exact:
        left, right = double(left), double(right)
    if symbol != "/":
        result = _OPERATIONS[symbol](left, right)
    elif not right:
        return None
    elif exact:
        result = abs(left) // abs(right)
        if (left < 0) != (right < 0):
            result = -result
    else:
        result = left / right
    return long(result) if isinstance(result, int) else result


def negative(value: Value) -> Value:
    """Return the negated value, NULL if it is not a number."""
    if not is_number(value):
        return None
    return long(-value) if isinstance(value, int) else -value


def read_exact(text: str) -> int:
    """Return a Java integer literal as a long.

    A decimal may be as large as LONG_LIMIT, which only a minus brings into the range. Raises
    ValueError with a description.
    """
    digits = text.rstrip("lL").lower()
    if digits.startswith("0x"):
        value = int(digits[2:], 16)
    elif digits.startswith("0"):
        if not set(digits) <= set("01234567"):
            raise ValueError("octal digits after a leading zero")
        value = int(digits, 8)
    else:
        value = int(digits) if len(digits) < 20 else LONG_LIMIT + 1
        if value > LONG_LIMIT:
            raise ValueError("a number in the range of long")
        return value
    if value >> LONG_BITS:
        raise ValueError("a number in the range of long")
    return long(value)


def read_approximate(text: str) -> float:
    """Return a Java floating-point literal as a double. Raises ValueError with a description."""
    if text[-1] in "fF":
        try:
            value = struct.unpack("<f", struct.pack("<f", float(text[:-1])))[0]
        except OverflowError:
            raise ValueError("a number in the range of float") from None
        return float(value)
    value = float(text.rstrip("dD"))
    if math.isinf(value):
        raise ValueError("a number in the range of double")
    return value
