from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.server.settings import Unit, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("64MiB", Unit.BYTES, 64 * 1024**2),
        ("64 MiB", Unit.BYTES, 64 * 1024**2),
        ("1.5kB", Unit.BYTES, 1500),
        ("7", Unit.BYTES, 7),
        ("1.5s", Unit.MILLISECONDS, 1500),
        ("2min", Unit.SECONDS, 120),
        ("250ms", Unit.SECONDS, 0.25),
        ("0.1s", Unit.MILLISECONDS, 100),
        ("0660", Unit.MODE, 0o660),
        ("0o660", Unit.MODE, 0o660),
        ("660", Unit.MODE, 0o660),
    ],
)
def test_parse(text: str, unit: Unit, expected: float) -> None:
    value = parse_quantity(text, unit)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("64M", Unit.BYTES),
        ("5s", Unit.BYTES),
        ("5MiB", Unit.SECONDS),
        ("-1", Unit.SECONDS),
        ("1e3", Unit.SECONDS),
        ("٣", Unit.BYTES),
        ("nan", Unit.SECONDS),
        ("", Unit.BYTES),
        ("1" * 30, Unit.BYTES),
        ("0888", Unit.MODE),
        ("rw", Unit.MODE),
    ],
)
def test_parse_rejects_invalid_values(text: str, unit: Unit) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_quantity(text, unit)


@given(st.integers(0, 2**50), st.sampled_from([Unit.BYTES, Unit.MILLISECONDS, Unit.SECONDS]))
def test_formatted_value_parses_to_same_value(value: int, unit: Unit) -> None:
    assert parse_quantity(format_quantity(value, unit), unit) == value


def test_format_uses_largest_exact_unit() -> None:
    assert format_quantity(64 * 1024**2, Unit.BYTES) == "64MiB"
    assert format_quantity(120_000, Unit.MILLISECONDS) == "2min"
    assert format_quantity(0.25, Unit.SECONDS) == "250ms"


@given(st.integers(0, 0o777))
def test_formatted_mode_parses_to_same_mode(mode: int) -> None:
    assert parse_quantity(format_quantity(mode, Unit.MODE), Unit.MODE) == mode
