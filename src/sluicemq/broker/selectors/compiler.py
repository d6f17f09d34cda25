"""Compiler of a selector's nodes to closures.

A condition is TRUE, FALSE or UNKNOWN, but the distinction is never needed in full: the selector
matches if the condition is TRUE, and NOT is TRUE if its operand is FALSE. So each condition is
compiled for one truth value, `expected`, to a function that returns whether the condition has it.
AND is TRUE if all operands are, and FALSE if any is; OR is the reverse; NOT inverts `expected`; and
only comparisons handle NULL, for which both functions return False. This implements SQL's
three-valued logic (JMS 1.1 section 3.8.1.2) exactly, without a third value.

A comparison of unlike types is FALSE, as JMS defines: "if the comparison of non-like type values is
attempted, the value of the operation is false". So `NOT (size = 1)` holds for a size of 'large',
and `size <> 1` does not. With NULL on either side it is UNKNOWN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final

from sluicemq.broker.selectors.nodes import (
    All,
    Any,
    Arithmetic,
    Comparison,
    Identifier,
    Like,
    Literal,
    Minus,
    Node,
    Not,
    Null,
    Value,
    Within,
    matcher,
)
from sluicemq.broker.selectors.values import (
    NUMBERS,
    Read,
    calculate,
    double,
    is_field,
    is_number,
    negative,
    reader,
)
from sluicemq.model.message import Message

Test = Callable[["Message"], bool]
Compare = Callable[[Value, Value], bool]

_OPERATORS: Final[dict[str, Callable[..., bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY: Final = (operator.eq, operator.ne)
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def always(message: Message) -> bool:
    """Return True, as the test of a constant condition."""
    return True


def never(message: Message) -> bool:
    """Return False, as the test of a constant condition."""
    return False


def compile_condition(node: Node, expected: bool) -> Test:
    """Return a function that tests whether the condition is TRUE (or FALSE, as `expected`)."""
    match node:
        case All(operands=operands) | Any(operands=operands):
            tests = [compile_condition(operand, expected) for operand in operands]
            return _combined(tests, isinstance(node, All) is expected)
        case Not():
            return compile_condition(node.operand, not expected)
        case Comparison():
            return _comparison(node, expected)
        case Within():
            strings = node.strings
            return _tested(node.operand, lambda value: (value in strings) is expected)
        case Like():
            matches = matcher(node.pattern)
            return _tested(
                node.operand,
                lambda value: (isinstance(value, str) and bool(matches(value))) is expected,
            )
        case Null():
            read = reader(node.operand.name)
            return lambda message: (read(message) is None) is expected
    return _comparison(Comparison(node.position, "=", node, Literal(node.position, True)), expected)


# --- AND and OR ------------------------------------------------------------------------------


def _combined(tests: list[Test], every: bool) -> Test:
    """Return a test that every one of the tests holds, or any of them."""
    decisive_test, neutral_test = (never, always) if every else (always, never)
    if decisive_test in tests:
        return decisive_test
    open_tests = tuple(test for test in tests if test is not neutral_test)
    if not open_tests:
        return neutral_test
    if len(open_tests) == 1:
        return open_tests[0]
    if len(open_tests) == 2:
        first, second = open_tests
        if every:
            return lambda message: first(message) and second(message)
        return lambda message: first(message) or second(message)

    def test_each(message: Message) -> bool:
        for test in open_tests:
            if test(message) is not every:
                return not every
        return every

    return test_each


# --- comparisons -----------------------------------------------------------------------------


def _comparison(node: Comparison, expected: bool) -> Test:
    symbol, left, right = node.operator, node.left, node.right
    if isinstance(left, Literal):
        symbol, left, right = _MIRRORED[symbol], right, left
    compare = _OPERATORS[symbol]
    if not isinstance(right, Literal):
        return _two_values(_value(left), compare, _value(right), expected)
    literal = right.value
    if literal is None:
        return never
    if isinstance(left, Literal):
        result = left.value is not None and _holds(compare, left.value, literal) is expected
        return always if result else never
    if isinstance(left, Identifier) and not is_field(left.name):
        if isinstance(literal, str) and symbol == "=" and expected:
            return _property_is(left.name, literal)
        if is_number(literal):
            return _property_compares(left.name, compare, literal, expected)
    return _tested(left, lambda value: _holds(compare, value, literal) is expected)


def _holds(compare: Compare, left: Value, right: Value) -> bool:
    """Return the result of a comparison of two values that are not NULL."""
    left_type, right_type = type(left), type(right)
    if left_type is right_type:
        # strings and Booleans have no order
        return (left_type in NUMBERS or compare in _EQUALITY) and compare(left, right)
    return is_number(left) and is_number(right) and compare(double(left), double(right))


def _two_values(left: Read, compare: Compare, right: Read, expected: bool) -> Test:
    def test(message: Message) -> bool:
        left_value, right_value = left(message), right(message)
        return (
            left_value is not None
            and right_value is not None
            and _holds(compare, left_value, right_value) is expected
        )

    return test


def _property_is(name: str, literal: str) -> Test:
    def test(message: Message) -> bool:
        properties = message.properties
        return properties is not None and properties.get(name) == literal

    return test


def _property_compares(name: str, compare: Compare, literal: float, expected: bool) -> Test:
    kind = type(literal)

    def test(message: Message) -> bool:
        properties = message.properties
        if properties is None:
            return False
        value = properties.get(name)
        if type(value) is kind:  # the common case
            return compare(value, literal) is expected
        if value is None or isinstance(value, bytes):
            return False
        return _holds(compare, value, literal) is expected

    return test


def _tested(node: Node, test: Callable[[Value], bool]) -> Test:
    """Return a test of a value that is False if the value is NULL."""
    read = _value(node)

    def test_value(message: Message) -> bool:
        value = read(message)
        return value is not None and test(value)

    return test_value


# --- values ----------------------------------------------------------------------------------


def _value(node: Node) -> Read:
    match node:
        case Identifier():
            return reader(node.name)
        case Minus():
            read = _value(node.operand)
            return lambda message: negative(read(message))
        case Arithmetic():
            return _arithmetic(
                _value(node.first), [(symbol, _value(operand)) for symbol, operand in node.rest]
            )
    assert isinstance(node, Literal)
    literal = node.value
    return lambda message: literal


def _arithmetic(first: Read, rest: list[tuple[str, Read]]) -> Read:
    def read(message: Message) -> Value:
        value = first(message)
        for symbol, operand in rest:
            value = calculate(symbol, value, operand(message))
        return value

    return read
