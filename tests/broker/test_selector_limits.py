"""Limits on the length and nodes of a selector, and the cost of the largest ones."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.broker import EngineSettings, compile_selector
from sluicemq.broker.selectors import SelectorLimits
from sluicemq.broker.selectors.nodes import matcher, split_pattern
from sluicemq.broker.selectors.reader import read
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import SelectorError
from sluicemq.model.message import Message
from tests.broker.expressions import Tree, conditions, to_text
from tests.support.broker import BrokerFixture

LIMITS = SelectorLimits()
QUEUE = Address(Kind.QUEUE, "q")


def padded(size: int) -> str:
    """Return a selector of `size` bytes with few nodes."""
    return "a = '" + "x" * (size - 6) + "'"


def in_list(nodes: int) -> str:
    """Return a selector with that many nodes: IN, an identifier, and strings."""
    return "a IN (" + ",".join(["''"] * (nodes - 2)) + ")"


def test_default_limits() -> None:
    assert SelectorLimits() == (8192, 512)
    assert EngineSettings().selectors == LIMITS


@pytest.mark.parametrize("text", [padded(8192), in_list(512), "a = 'ä" + "x" * 8184 + "'"])
def test_selectors_at_limits_are_accepted(text: str) -> None:
    assert compile_selector(text, LIMITS).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (padded(8193), "the selector has 8193 bytes, at most 8192 are allowed"),
        ("a = 'ä" + "x" * 8185 + "'", "the selector has 8193 bytes"),
        ("\ud800" * 2731, "the selector has 8193 bytes"),
        (in_list(513), "the selector has 513 identifiers, literals and operations, at most 512"),
        (" OR ".join(["a = 1"] * 171), "the selector has 514 identifiers"),
        ("(" * 60_000, "the selector has 60000 bytes"),
    ],
)
def test_selectors_above_limits_are_refused(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as error:
        compile_selector(text, LIMITS)
    assert message in str(error.value)
    assert "broker.max_selector_" in str(error.value)


def test_selector_in_use_is_refused_under_lower_limits() -> None:
    selector = compile_selector("n = 1 AND m = 2")
    with pytest.raises(SelectorError):
        compile_selector(selector.text, SelectorLimits(nodes=selector.nodes - 1))
    assert compile_selector(selector.text, SelectorLimits(nodes=selector.nodes)) is selector


def test_limits_apply_to_clients_and_not_to_recovered_selectors() -> None:
    fixture = BrokerFixture(EngineSettings(max_selector_bytes=20, max_selector_nodes=4))
    assert fixture.broker.compile_selector("a = 1").nodes == 3
    for text in ("a = 1 AND b = 1", "a = 'xxxxxxxxxxxxxxxxxxxxx'"):
        with pytest.raises(SelectorError):
            fixture.broker.compile_selector(text)
        assert fixture.broker.restored_selector(text).text == text


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a", 1),
        ("a = 1", 3),
        ("NOT a = 1", 4),
        ("a = 1 AND b = 1", 7),
        ("a + 1 - 2 = 3 * b", 8),
        ("((a))", 1),
        ("a BETWEEN 1 AND 2", 7),
        ("a IS NULL", 2),
        ("a IS NOT NULL", 3),
        ("a IN ('x', 'y')", 4),
        ("a NOT IN ('x')", 4),
        ("a LIKE 'x%'", 2),
        ("a LIKE '%x%'", 10),
        ("a LIKE '%x%y%z'", 18),
        ("a LIKE '%x_%'", 26),
        ("a NOT LIKE '_x'", 3),
    ],
)
def test_node_counts(text: str, nodes: int) -> None:
    assert read(text).size == compile_selector(text).nodes == nodes


# --- the largest accepted selectors ---------------------------------------------------------------

PARTS = [
    "a = 1",
    "a <> 'x'",
    "a",
    "NOT a",
    "a + a * a - a / 2 < -a",
    "a = -(-(-(a)))",
    "(a BETWEEN a - 1 AND a + 1)",
    "a IN ('x', 'y', 'z')",
    "s LIKE '%xxxy%'",
    "s LIKE 'x%x_x_y%x'",
    "s LIKE 'x_x'",
    "a IS NOT NULL",
    "a > 1e308 * 1e308",
    "a = 9223372036854775807 * 9223372036854775807",
    "JMSPriority = 4",
]


def largest_selector(part: str, separator: str) -> str:
    """Join copies of `part`, as many as the limits accept."""

    def is_refused(copies: int) -> bool:
        try:
            compile_selector(separator.join([part] * copies), LIMITS)
        except SelectorError:
            return True
        return False

    # the index of the first refused number is the last accepted one; a copy has a node or more
    copies = bisect_left(range(1, 514), True, key=is_refused)
    return separator.join([part] * copies)


@pytest.mark.parametrize("separator", [" OR ", " AND ", " AND NOT "])
@pytest.mark.parametrize("part", PARTS)
def test_largest_selector_of_each_kind_compiles_and_evaluates(part: str, separator: str) -> None:
    selector = compile_selector(largest_selector(part, separator), LIMITS)
    assert 480 <= selector.nodes <= 512
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # pytest already uses part of the stack
    try:
        for value in (1, 1.5, "x" * 1000, True, None, 10**400):
            selector(Message(QUEUE, b"", properties={"a": value, "s": "x" * 1000}))
    finally:
        sys.setrecursionlimit(limit)


@settings(max_examples=60)
@given(st.lists(conditions, min_size=1, max_size=60), st.sampled_from([" AND ", " OR "]))
def test_every_accepted_selector_evaluates(trees: list[Tree], separator: str) -> None:
    text = separator.join(f"({to_text(tree)})" for tree in trees)
    try:
        selector = compile_selector(text, LIMITS)
    except SelectorError:
        assert len(text) > LIMITS.text or read(text).size > LIMITS.nodes  # type: ignore[operator]
        return
    assert selector.nodes <= 512
    assert selector(Message(QUEUE, b"", properties={"a": 1})) in (True, False)


@pytest.mark.parametrize("pattern", ["%" + "x" * 1000 + "y%c", "%x%x%x%x%x%x%x%x%y%", "x%" * 500])
def test_matching_time_of_pattern_is_bounded(pattern: str) -> None:
    """The bound is generous: with backtracking, these patterns take minutes."""
    matches = matcher(split_pattern(pattern, ""))
    before = time.thread_time()
    matches("x" * 60_000)
    assert time.thread_time() - before < 2


def test_pattern_with_too_many_comparisons_is_refused() -> None:
    with pytest.raises(SelectorError, match="identifiers"):
        compile_selector("s LIKE '%" + "_x" * 40 + "%c'", LIMITS)


PATTERNS = st.text("ab%_", max_size=12)


@settings(max_examples=300)
@given(PATTERNS, st.text("ab", max_size=14))
def test_patterns_match_as_defined(pattern: str, value: str) -> None:
    assert bool(matcher(split_pattern(pattern, ""))(value)) == matches_by_definition(pattern, value)


def matches_by_definition(pattern: str, value: str) -> bool:
    if not pattern:
        return not value
    first, rest = pattern[0], pattern[1:]
    if first == "%":
        return any(
            matches_by_definition(rest, value[position:]) for position in range(len(value) + 1)
        )
    return bool(value) and first in ("_", value[0]) and matches_by_definition(rest, value[1:])
