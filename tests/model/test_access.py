from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.access import (
    ANONYMOUS,
    EVERYBODY,
    Identity,
    Operation,
    Permission,
    is_role_name,
    is_user_name,
    matcher,
)

_few = st.text("ab.\n", max_size=8)


def naive(pattern: str, name: str) -> bool:
    """Match by the definition, without optimizations."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(naive(pattern[1:], name[start:]) for start in range(len(name) + 1))
    return name[:1] == pattern[0] and naive(pattern[1:], name[1:])


@given(st.text("ab.*", max_size=7), _few)
def test_a_pattern_matches_what_its_definition_says(pattern: str, name: str) -> None:
    assert bool(matcher(pattern).match(name)) == naive(pattern, name)


@given(st.lists(_few, min_size=1, max_size=4), st.lists(_few, max_size=4))
def test_asterisks_may_stand_for_anything(parts: list[str], between: list[str]) -> None:
    name = parts[0]
    for index, part in enumerate(parts[1:]):
        name += (between[index] if index < len(between) else "") + part
    assert matcher("*".join(parts)).match(name)


def test_regular_expression_characters_are_literal() -> None:
    assert matcher("a.b+[c]$").match("a.b+[c]$")
    assert not matcher("a.b").match("axb")
    assert not matcher("a").match("a\n")
    assert not matcher("orders").match("Orders")


def test_case_is_ignored_if_permission_requires_it() -> None:
    assert matcher("ORDERS.*.Größe", ignore_case=True).match("orders.x.GRÖSSE".replace("SS", "ß"))
    assert not matcher("ORDERS.*", ignore_case=True).match("bills.a")
    produce = frozenset({Operation.PRODUCE})
    caseless = Identity("anna", [Permission("ORDERS.*", produce, ignore_case=True)])
    case_sensitive = Identity("anna", [Permission("ORDERS.*", produce)])
    for name in ("orders.a", "Orders.a", "ORDERS.a"):
        assert caseless.may(Operation.PRODUCE, name)
        assert caseless.sees(name)
        assert (
            case_sensitive.may(Operation.PRODUCE, name)
            == case_sensitive.sees(name)
            == (name == "ORDERS.a")
        )
    assert not caseless.may(Operation.CONSUME, "orders.a")


def test_many_asterisks_take_bounded_time() -> None:
    # backtracking would take 5000 to the power of 60 steps
    assert not matcher("*a" * 60 + "*b").match("a" * 5000)
    assert not matcher("*a" * 60 + "*b*").match("a" * 5000)


def permission(pattern: str, *operations: Operation) -> Permission:
    return Permission(pattern, frozenset(operations))


def test_allowed_operations_are_union_of_matching_permissions() -> None:
    identity = Identity(
        "anna",
        [
            permission("orders.*", Operation.PRODUCE),
            permission("*.new", Operation.CONSUME),
            permission("bills"),
        ],
    )
    assert identity.may(Operation.PRODUCE, "orders.new")
    assert identity.may(Operation.CONSUME, "orders.new")
    assert not identity.may(Operation.CONSUME, "orders.old")
    assert not identity.may(Operation.MANAGE, "orders.new")
    assert identity.sees("bills")
    assert not identity.sees("bill")


def test_superusers_and_unauthenticated_users() -> None:
    assert Identity("root", superuser=True).may(Operation.DELETE, "x")
    assert EVERYBODY.may(Operation.DELETE, "x")
    assert EVERYBODY.sees("x")
    assert not any(ANONYMOUS.may(operation, "x") for operation in Operation)
    assert not ANONYMOUS.sees("x")


def test_cached_decision_equals_first_one() -> None:
    identity = Identity("anna", [permission("1*", Operation.PRODUCE)])
    for _ in range(2):
        for number in range(3000):
            verdict = identity.may(Operation.PRODUCE, str(number))
            assert verdict == str(number).startswith("1")


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("anna", True),
        ("jörg-2.x_y@example.org", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("", False),
        (".", False),
        ("..", False),
        ("...", True),
        ("a b", False),
        ("a\n", False),
        ("a/b", False),
        ("(admin token)", False),
        ("CN=Alice Ö,O=Example\\, Inc.+UID=7", True),
        ("2.5.4.5=\\#1,C=DE", True),
        ("CN=" + "a" * 191, True),
        ("CN=" + "a" * 192, False),
        ("CN=a:b", False),
        ("CN=a\n", False),
        ("=a", False),
    ],
)
def test_user_names(name: str, valid: bool) -> None:
    assert is_user_name(name) is valid
    assert is_role_name(name) is (valid and "=" not in name)
