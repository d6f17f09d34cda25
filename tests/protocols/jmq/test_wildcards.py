"""Topics that match a wildcard."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.jmq.destinations import Pattern, is_wildcard
from tests.protocols.jmq.harness import executed_lines

elements = st.sampled_from(["a", "b", "cc"])
names = st.lists(elements, min_size=1, max_size=6).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=6).map(".".join)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a.*", ["a.b", "a.c"], ["a", "a.b.c", "b.a", "ab", "a."]),
        ("*.a", ["b.a"], ["a", "a.b", ".a"]),
        ("a.**", ["a.b", "a.b.c"], ["a", "b", "ab"]),
        ("**.a", ["b.a", "c.b.a"], ["a", "a.b"]),
        ("a.**.b", ["a.c.b", "a.c.d.b"], ["a.b", "a", "b", "a.b.c"]),
        ("a>", ["a", "a.b", "a.b.c"], ["b", "ab"]),
        ("a.>", ["a.b", "a.b.c"], ["a", "b"]),
        ("*.>", ["a.b", "a.b.c"], ["a"]),
        ("a.*>", ["a.b.c", "a.b.c.d"], ["a", "a.b"]),
        ("a.**.>", ["a.b.c", "a.b.c.d"], ["a", "a.b"]),
        ("**>", ["a.b", "a.b.c"], ["a"]),
        (">", ["a", "a.b"], []),
        ("**", ["a", "a.b"], []),
        ("*.**.*", ["a.b.c", "a.b.c.d"], ["a", "a.b"]),
        ("a", ["a"], ["b", "a.a"]),
    ],
)
def test_pattern_matches_topic_names(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert all(compiled.matches(name) for name in matching)
    assert not any(compiled.matches(name) for name in others)


@pytest.mark.parametrize(
    "text", ["a*", "*a.b", "a.>.b", "a..b", "", "***", ".*", ">>", ".>", "a>b"]
)
def test_malformed_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no"):
        Pattern(text)


@given(patterns, names)
def test_as_a_regular_expression(pattern: str, name: str) -> None:
    expression = "".join(
        {"*": r"[^.]+\.", "**": r"(?:[^.]+\.)+"}.get(element, element + r"\.")
        for element in pattern.split(".")
    )
    expected = re.fullmatch(expression, name + ".") is not None
    assert Pattern(pattern).matches(name) == expected


def test_matching_time_of_long_wildcard_is_bounded() -> None:
    pattern = Pattern("**." + "a." * 250 + "b")
    counts: list[int] = []
    with executed_lines(counts):
        assert not pattern.matches("a." * 510 + "a")
    assert counts[0] < 10 * 511


@given(names)
def test_name_is_no_wildcard_and_matches_itself(name: str) -> None:
    assert not is_wildcard(Address(Kind.TOPIC, name))
    assert Pattern(name).matches(name)
