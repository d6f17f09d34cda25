from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.identifiers import from_identifier, to_identifier

parts = st.sampled_from(
    ["_", "HYPHEN", "DOT", "x002D", "x1F600", "x110000", "-", ".", "1", "a", "x005F", "😀"]
)
names = st.text() | st.lists(parts, max_size=8).map("".join)


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("color", "color"),
        ("_a$1", "_a$1"),
        ("größe", "größe"),
        ("content-type", "content_HYPHEN_type"),
        ("a.b", "a_DOT_b"),
        ("2nd", "_x0032_nd"),
        ("a b", "a_x0020_b"),
        ("😀", "_x1F600_"),
        ("𝒜", "_x1D49C_"),
        ("\udcff", "_xDCFF_"),
        ("a_HYPHEN_b", "a_x005F_HYPHEN_b"),
        ("_HYPHEN-", "_x005F_HYPHEN_HYPHEN_"),
        ("x_HYPHE", "x_HYPHE"),
        ("", ""),
    ],
)
def test_names(name: str, identifier: str) -> None:
    assert to_identifier(name) == identifier
    assert from_identifier(identifier) == name


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("orders.eu", "orders.eu"),
        ("6B01BDD5.1", "_x0036_B01BDD5.1"),
        (".a..b-c.", "_DOT_a..b_HYPHEN_c."),
        ("a_DOT_b", "a_x005F_DOT_b"),
    ],
)
def test_dotted_names(name: str, identifier: str) -> None:
    assert to_identifier(name, dotted=True) == identifier
    assert from_identifier(identifier) == name


def test_code_point_beyond_unicode_is_not_escape() -> None:
    assert from_identifier("_x110000_") == "_x110000_"


@given(names)
def test_every_name_has_an_identifier_and_is_found_again(name: str) -> None:
    identifier = to_identifier(name)
    assert identifier.replace("$", "_").isidentifier() or not identifier.isascii() or not name
    assert from_identifier(identifier) == name
    assert to_identifier(from_identifier(identifier)) == identifier
    dotted = to_identifier(name, dotted=True)
    assert from_identifier(dotted) == name
    assert not dotted.startswith(".")
    assert dotted.replace(".", "_DOT_") == identifier or "." in name
