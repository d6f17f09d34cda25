"""Syntax of selectors and messages of syntax errors."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from sluicemq.broker import compile_selector
from sluicemq.broker.selectors.compiler import Test, always, compile_condition, never
from sluicemq.broker.selectors.reader import MAX_DEPTH, read
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import SelectorError
from sluicemq.model.message import Durability, Message, Property

QUEUE = Address(Kind.QUEUE, "q")

PROPERTIES: dict[str, Property] = {
    "age": 17,
    "weight": 57.5,
    "name": "anna",
    "note": "line one\nline two",
    "quoted": "it's",
    "rate": "50%",
    "code": "a_b",
    "member": True,
    "gone": False,
    "raw": b"anna",
    "empty": "",
    "nothing": None,
    "big": 2**63 - 1,
    "least": -(2**63),
    "huge": 10**400,
    "single": 57.20000076293945,
    "$_x9": 1,
    "größe": 3,
    "n٣": 4,
    "e\u0301": 5,
    "JMSXGroupID": "g",
    "JMS_vendor": 1,
    "NOTE": 5,
    "android": 1,
    "jmsfoo": 1,
    "inf": float("inf"),
    "nan": float("nan"),
}


def message(**fields: Any) -> Message:
    return Message(QUEUE, b"", properties=PROPERTIES, **fields)


def selects(text: str, **fields: Any) -> bool:
    return compile_selector(text)(message(**fields))


@pytest.mark.parametrize(
    "text",
    [
        # literals
        "quoted = 'it''s'",
        "empty = ''",
        "age = 0x11",
        "age = 0X11L",
        "age = 021",
        "age = 17l",
        "age = 17.",
        "age = 17d",
        "age = 1.7e1",
        "age = 170E-1F",
        "weight = 57.5",
        "weight = .575e+2",
        "single = 57.2f",
        "single <> 57.2",
        "big = 9223372036854775807",
        "big = 0x7fffffffffffffff",
        "least = -9223372036854775808",
        "least = -(-9223372036854775808)",  # as in Java
        "-1 = 0xffffffffffffffff",
        "big < 1.5e19 AND huge > 9223372036854775808.0",
        "huge > 1e308",
        "inf > 1e308",
        # identifiers, keywords, blanks
        "$_x9 = 1",
        "größe = 3 AND n٣ = 4 AND e\u0301 = 5",
        "NOTE = 5 AND note LIKE 'line%'",
        "android = 1",
        "JMSXGroupID = 'g' and JMS_vendor = 1",
        "jmsfoo = 1",
        "name\tIs\nnOt\r\nnull\f",
        "age=17AND'x'='x'",
        "TRUE",
        "true AND Not fAlSe",
        "member",
        "(member)",
        "NOT gone",
        "member = TRUE AND FALSE = gone AND member <> gone",
        # precedence
        "TRUE OR TRUE AND FALSE",
        "NOT FALSE AND TRUE",
        "NOT (FALSE OR FALSE) AND NOT age = 18",
        "NOT NOT member",
        "2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20",
        "20 - 5 - 5 = 10 AND 100 / 10 / 5 = 2",
        "100 / age * 2 = 10 AND 40 - age - 3 = 20",
        "- age + 20 = 3 AND age - -3 = 20 AND -+-age = 17",
        "age - 7 > 9 AND age + 1 < 20 - 1",
        # arithmetic as in Java
        "7 / 2 = 3 AND -7 / 2 = -3 AND 7 / -2 = -3 AND age / 2 = 8",
        "7 / 2.0 = 3.5 AND age / 2. = 8.5",
        "big + 1 = least",
        "big * 2 = -2",
        "-least = least",
        "least / -1 = least",
        "9007199254740993 = 9007199254740992.0",
        "9007199254740993 <> 9007199254740992",
        # comparison
        "age = 17 AND age <> 18 AND age < 18 AND age <= 17 AND age > 16 AND age >= 17",
        "17 = age AND 18 <> age AND 18 > age AND 17 >= age AND 16 < age AND 17 <= age",
        "age < weight AND weight > age",
        "age BETWEEN 17 AND 17 AND age NOT BETWEEN 18 AND 20",
        "age BETWEEN 10 AND 20 AND member",
        "age + 1 BETWEEN age AND age * 2",
        "nan <> 1 AND NOT nan = nan AND NOT nan < 1",
        # unlike types are never equal, nor are they unequal
        "NOT (name = 17) AND NOT (name <> 17) AND NOT (name < 17)",
        "NOT (age = 'x') AND NOT (age <> 'x') AND NOT (member = 1) AND NOT (member = 'TRUE')",
        "NOT (name < code) AND NOT (code < name) AND NOT (gone < member)",
        "NOT age AND NOT name",
        "NOT (name BETWEEN 1 AND 2)",
        # sets and patterns
        "name IN ('bert', 'anna') AND name NOT IN ('bert')",
        "age NOT IN ('17')",
        "name LIKE 'anna' AND name LIKE 'a%' AND name LIKE '%a' AND name LIKE '%nn%'",
        "name LIKE '____' AND name LIKE 'a__a' AND name LIKE '_%_' AND name LIKE '%'",
        "name NOT LIKE '_' AND name NOT LIKE 'A%' AND name NOT LIKE 'ann' AND name NOT LIKE 'nn'",
        "name LIKE '%n%n%' AND name NOT LIKE '%n%n%n%' AND name LIKE 'a%n%a'",
        "note LIKE 'line%two' AND note LIKE 'line one_line two' AND note LIKE '%one_%'",
        "name NOT LIKE 'a..%_' AND rate NOT LIKE '[0-9]%0_'",
        "empty LIKE '' AND empty LIKE '%' AND empty NOT LIKE '_'",
        "rate LIKE '50!%' ESCAPE '!' AND rate NOT LIKE '!%50' ESCAPE '!'",
        "code LIKE 'a\\_b' ESCAPE '\\' AND name NOT LIKE 'a\\_na' escape '\\'",
        "quoted LIKE 'it''''s' ESCAPE ''''",
        "rate LIKE '50%%' ESCAPE '%' AND rate LIKE '5_%%' ESCAPE '%'",
        "age NOT LIKE '17'",
        # NULL
        "nothing IS NULL AND absent IS NULL AND raw IS NULL AND name IS NOT NULL",
        "JMSType IS NULL AND JMSMessageID IS NULL AND JMSCorrelationID IS NULL",
        "JMSPriority IS NOT NULL",
    ],
)
def test_matching_selectors(text: str) -> None:
    assert selects(text)


@pytest.mark.parametrize(
    "text",
    [
        "absent = 'x'",
        "absent <> 'x'",
        "absent = absent",
        "absent > 3",
        "absent + 1 > 0",
        "absent BETWEEN 1 AND 2",
        "absent IN ('x')",
        "absent LIKE '%'",
        "raw = 'anna'",
        "raw = 1",
        "raw > 1.5",
        "raw LIKE '%'",
        "nothing",
        "absent AND TRUE",
        "absent OR absent",
        "age / 0 = 1",
        "age / 0.0 > 1",
        "age / (age - 17) > 1",
        "1 / 0 = 1",
        "name + 1 > 0",
        "-name > 0",
        "member + 1 > 0",
        "member * 1 = 1",
    ],
)
def test_unknown_condition_and_its_negation_select_nothing(text: str) -> None:
    assert not selects(text)
    assert not selects(f"NOT ({text})")


def test_conditions_decided_without_unknown_are_known() -> None:
    assert selects("absent = 1 OR TRUE")
    assert selects("NOT (absent = 1 AND FALSE)")
    assert selects("member OR absent")
    assert not selects("absent = 1 AND TRUE")
    assert not selects("NOT (absent = 1 OR FALSE)")


def test_selectors_on_header_fields() -> None:
    fields: dict[str, Any] = {
        "priority": 7,
        "timestamp": 1234,
        "message_id": "ID:1",
        "correlation_id": "c",
        "type": "order",
    }
    assert selects(
        "JMSPriority = 7 AND JMSTimestamp > 1233 AND JMSMessageID = 'ID:1' "
        "AND JMSCorrelationID = 'c' AND JMSType LIKE 'ord%' AND JMSDeliveryMode = 'PERSISTENT'",
        **fields,
    )
    assert selects("JMSDeliveryMode = 'NON_PERSISTENT'", durability=Durability.NONE)
    assert not selects("JMSPriority <> 7 OR JMSPriority < 7 OR JMSPriority > 7", **fields)


def test_selectors_on_message_without_properties() -> None:
    message = Message(QUEUE, b"")
    for text in ("a = 'x'", "a = 1", "a = 1.0", "a", "NOT a", "a <> 'x'", "NOT (a = 1)"):
        assert not compile_selector(text)(message), text
    assert compile_selector("a IS NULL")(message)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "expected a value, found the end"),
        (" \t\n", 3, "expected a value, found the end"),
        ("age =", 5, "expected a value, found the end"),
        ("age = 17 18", 9, "expected an arithmetic operator, AND, OR or the end, found 18"),
        ("age = 17)", 8, "expected the end, found )"),
        ("age = 17 AND (a = 3", 19, "expected ')', found the end"),
        ("age 17", 4, "expected a comparison, an arithmetic operator, BETWEEN, LIKE, IN, IS, NOT,"),
        ("age == 17", 5, "expected a value, found ="),
        ("age != 17", 4, "'!' at offset 4 has no meaning"),
        ("age = 1 = 1", 8, "found ="),
        ("a.b = 1", 1, "'.' at offset 1 has no meaning"),
        ('name = "anna"', 7, "'\"' at offset 7 has no meaning"),
        ("name = 'anna", 7, "expected a quote that ends the string"),
        ("name = 'anna''", 7, "expected a quote that ends the string"),
        ("name = 'an'na'", 11, "found na"),
        ("\u00a0age = 1", 0, "'\\xa0' at offset 0 has no meaning"),
        ("a\u00b2 = 1", 1, "'\\xb2' at offset 1 has no meaning"),
        ("\u0663 = 1", 0, "'\\u0663' at offset 0 has no meaning"),
        ("\u0300a = 1", 0, "'\\u0300' at offset 0 has no meaning"),
        ("name = NULL", 7, "expected a value, found NULL"),
        ("NULL", 0, "expected a value, found NULL"),
        ("AND = 3", 0, "expected a value, found AND"),
        ("escape = 3", 0, "expected a value, found escape"),
        ("age IS 3", 7, "expected NOT or NULL, found 3"),
        ("17 IS NULL", 0, "expected an identifier, found a number"),
        ("age NOT 17", 8, "expected BETWEEN, LIKE or IN, found 17"),
        ("age BETWEEN 1 2", 14, "expected an arithmetic operator or AND, found 2"),
        ("age BETWEEN 1", 13, "expected AND, found the end"),
        ("age BETWEEN 'a' AND 'b'", 12, "expected a number, found a string"),
        ("name IN ()", 9, "expected a string, found )"),
        ("name IN ('a' 'b')", 13, "expected ',' or ')', found 'b'"),
        ("age IN (17)", 8, "expected a string, found 17"),
        ("'a' IN ('a')", 0, "expected an identifier, found a string"),
        ("name LIKE", 9, "expected a string, found the end"),
        ("name LIKE code", 10, "expected a string, found code"),
        ("name LIKE 'a' ESCAPE '!!'", 21, "expected a string of one character, found '!!'"),
        ("name LIKE 'a' ESCAPE ''", 21, "expected a string of one character, found ''"),
        ("name LIKE 'a!' ESCAPE '!'", 10, "expected a character after the escape !"),
        ("name LIKE '" + "a" * 1025 + "'", 10, "expected a pattern of at most 1024 characters"),
        ("age + 1 LIKE 'a'", 0, "expected an identifier, found a number"),
        ("age > 'a'", 6, "expected a number, found a string"),
        ("'a' < name", 0, "expected a number, found a string"),
        ("age <= TRUE", 7, "expected a number, found a Boolean"),
        ("age + 'a' = 1", 6, "expected a number, found a string"),
        ("-TRUE = 1", 1, "expected a number, found a Boolean"),
        ("+'a' = 'a'", 1, "expected a number, found a string"),
        ("+member", 0, "expected a condition, found a number"),
        ("(age = 1) + 1 = 2", 1, "expected a number, found a condition"),
        ("(age = 1) = TRUE", 1, "expected a value, found a condition"),
        ("age + 1", 0, "expected a condition, found a number"),
        ("NOT 'a'", 4, "expected a condition, found a string"),
        ("member AND 5", 11, "expected a condition, found a number"),
        ("5 OR member", 0, "expected a condition, found a number"),
        ("age = 08", 6, "expected octal digits after a leading zero, found 08"),
        ("age = 9223372036854775808", 6, "expected a number in the range of long"),
        ("age = 0 - 9223372036854775808", 10, "expected a number in the range of long"),
        ("age = " + "9" * 5000, 6, "expected a number in the range of long, found 9999"),
        ("age = 0x10000000000000000", 6, "expected a number in the range of long"),
        ("age = 1e999", 6, "expected a number in the range of double"),
        ("age = 1e39f", 6, "expected a number in the range of float"),
        ("JMSDestination = 'q'", 0, "expected one of JMSCorrelationID, JMSDeliveryMode, "),
        ("age = 1 AND JMSReplyTo = 'q'", 12, "found JMSReplyTo"),
        ("JMSExpiration > 0", 0, "found JMSExpiration"),
        ("JMSRedelivered", 0, "found JMSRedelivered"),
        ("JMSfoo = 1", 0, "found JMSfoo"),
    ],
)
def test_error_names_expectation_and_position(text: str, position: int, message: str) -> None:
    with pytest.raises(SelectorError) as error:
        compile_selector(text)
    assert message in str(error.value)
    assert error.value.position == position
    assert f"at offset {position}" in str(error.value)


@pytest.mark.parametrize(
    ("start", "before", "inside", "after"),
    [
        ("", "(", "member", ")"),
        ("", "NOT ", "member", ""),
        ("", "NOT (", "member", ")"),
        ("age > ", "-", "1", ""),
        ("", "member AND (gone OR ", "age > 1", ")"),
        ("1 < ", "age * (2 + ", "age", ")"),
        ("1 < ", "-(age - ", "age", ")"),
    ],
)
def test_nesting_depth_is_limited(start: str, before: str, inside: str, after: str) -> None:
    errors = []
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(900)  # a broker already uses part of the stack
    try:
        for depth in (1, 10, 30, 45, 60, 90, 150, 190, 250, 3000):
            try:
                selects(start + before * depth + inside + after * depth)
            except SelectorError as error:
                errors.append(str(error))
            else:
                assert not errors
    finally:
        sys.setrecursionlimit(limit)
    assert 2 <= len(errors) <= 6
    for message in errors:
        assert f"more than {MAX_DEPTH} parentheses and operations" in message


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("TRUE OR age = 1", always),
        ("NOT (FALSE AND age = 1)", always),
        ("TRUE AND NOT FALSE", always),
        ("3 * 4 > 11 AND 'x' <> 'y'", always),
        ("FALSE AND age = 1", never),
        ("FALSE OR 1 / 0 = 1", never),
        ("age = 1 / 0", never),
    ],
)
def test_constant_conditions_are_folded(text: str, constant: Test) -> None:
    assert compile_condition(read(text), True) is constant


@pytest.mark.parametrize("chain", ["member AND ", "gone OR ", "age = 16 OR ", "TRUE AND "])
def test_long_chain_is_not_nested(chain: str) -> None:
    assert selects(chain * 3000 + "member")


def test_long_sum_is_not_nested() -> None:
    assert selects("+".join(["age"] * 5000) + " = 85000")


def test_equal_texts_share_one_selector() -> None:
    text = f"age = {1:05}"
    first = compile_selector(text)
    assert compile_selector("".join(list(text))) is first
    assert first.text == text
    long_text = f"age = 17 OR name = '{'x' * 5000}'"
    selector = compile_selector(long_text)
    assert compile_selector(long_text) is selector


def test_patterns_do_not_backtrack() -> None:
    """With backtracking this would not end in any reasonable time."""
    selector = compile_selector("name LIKE '" + "%a" * 30 + "b'")
    target = Message(QUEUE, b"", properties={"name": "a" * 5000})
    assert not selector(target)
