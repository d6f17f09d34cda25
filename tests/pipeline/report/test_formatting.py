"""Formatting of figures and of text from messages."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.pipeline.report import formatting


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (7, "7"),
        (0.25, "0.25"),
        (9.99, "9.99"),
        (94.0, "94"),
        (999.4, "999"),
        (999.6, "1k"),
        (12_345, "12.3k"),
        (999_960, "1M"),
        (5e9, "5G"),
        (None, "–"),
    ],
)
def test_format_of_counts(value: float | None, expected: str) -> None:
    assert formatting.short(value) == expected


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0.25, "0.25 ms"),
        (12.04, "12 ms"),
        (1500, "1.5 s"),
        (90_000, "1.5 min"),
        (7_200_000, "2 h"),
        (30 * 86_400_000, "30 d"),
        (None, "–"),
    ],
)
def test_format_of_durations(milliseconds: float | None, expected: str) -> None:
    assert formatting.duration(milliseconds) == expected


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1536, "1.5 KiB"),
        (2**20, "1 MiB"),
        (5 * 2**40, "5 TiB"),
        (None, "–"),
    ],
)
def test_format_of_sizes(octets: int | None, expected: str) -> None:
    assert formatting.size(octets) == expected


def test_small_rate_is_per_minute() -> None:
    assert [formatting.rate(value) for value in (12_000, 1, 1 / 60, 0)] == [
        "12k/s",
        "1/s",
        "1/min",
        "0/s",
    ]


def test_period_of_one_day_contains_date_once() -> None:
    start = 1_795_262_700  # 21 Nov 2026, 12:05
    assert formatting.span(start, start + 300) == "21 Nov, 12:05 to 12:10"
    assert formatting.span(start, start + 366 * 86_400) == "21 Nov, 12:05 to 22 Nov, 12:05"
    assert formatting.span(start, start + 86_400) == "21 Nov, 12:05 to 22 Nov, 12:05"
    assert formatting.span(start, start + 300, formatting.moment) == "21 Nov 2026, 12:05 to 12:10"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("Müller 訂單 🚚", "Müller 訂單 🚚"),
        ("a\0b\x1bc\x7f", "a\\x00b\\x1bc\\x7f"),
        ("two\nlines\t", "two\nlines\t"),
        ("gnp.\u202egpj", "gnp.\\u202egpj"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_invisible_characters_are_escaped(text: str, seen: str) -> None:
    assert formatting.printable(text) == seen


@given(st.text(st.characters()))
def test_nothing_invisible_is_left(text: str) -> None:
    for character in formatting.printable(text):
        assert character in "\n\t" or unicodedata.category(character)[0] != "C"


def test_long_text_is_truncated() -> None:
    assert formatting.printable("abcdef", 4) == "abc…"
    assert formatting.printable("abcd", 4) == "abcd"
