"""Compiled selectors compared with an exact evaluation by the specification."""

from __future__ import annotations

from hypothesis import example, given, settings

from sluicemq.broker import compile_selector
from sluicemq.broker.selectors.equality import bucket_of
from sluicemq.broker.selectors.values import reader
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Message, Property
from tests.broker.expressions import Tree, conditions, evaluate, properties, to_text

Properties = dict[str, Property] | None


def message(found: Properties) -> Message:
    return Message(Address(Kind.QUEUE, "q"), b"", properties=found)


@settings(max_examples=1500)
@given(conditions, properties)
@example(("not", ("=", ("name", "a"), ("literal", "x"))), {"a": b"x"})
@example(("=", ("name", "a"), ("literal", 1)), {"a": True})
@example(("and", ("name", "a"), ("=", ("name", "a"), ("literal", 1))), {"a": True})
@example(("not", ("<", ("name", "a"), ("literal", 1.5))), {"a": "x"})
@example(("=", ("name", "a"), ("literal", 2**53 + 1)), {"a": 2.0**53})
@example(("=", ("name", "a"), ("literal", 2.0**53)), {"a": 2**53 + 1})
@example(("=", ("/", ("minus", ("name", "a")), ("literal", 2)), ("literal", -3)), {"a": 7})
def test_selectors_follow_the_specification(tree: Tree, found: Properties) -> None:
    """Messages that a selector accepts also have its equalities, by which they are found."""
    text = to_text(tree)
    verdict = evaluate(tree, found or {})
    selector = compile_selector(text)
    assert selector(message(found)) is (verdict is True), text
    assert compile_selector(f"NOT ({text})")(message(found)) is (verdict is False), text
    if verdict is True:
        for equality in selector.equalities:
            assert bucket_of(reader(equality.field)(message(found))) in equality.buckets


def equalities_of(text: str) -> dict[str, set[object]]:
    return {field: set(buckets) for field, buckets in compile_selector(text).equalities}


def test_equalities_of_selector() -> None:
    assert equalities_of("id = 17 AND price > 3") == {"id": {17}}
    assert equalities_of("price > 3 AND ('x' = kind AND 17 = id)") == {"kind": {"x"}, "id": {17}}
    assert equalities_of("kind IN ('x', 'y') AND kind NOT IN ('z')") == {"kind": {"x", "y"}}
    assert equalities_of("id = 1 OR id = 2 AND kind = 'x' OR id = 2.5") == {"id": {1, 2, 2.5}}
    assert equalities_of("paid AND id = 1") == {"paid": {(True,)}, "id": {1}}
    assert equalities_of("paid = FALSE") == {"paid": {(False,)}}
    assert equalities_of("id = 1 AND id = 2") == {"id": set()}
    assert equalities_of("JMSType = 'x'") == {"JMSType": {"x"}}


def test_selectors_without_equalities() -> None:
    for text in (
        "id = 17 OR price > 3",
        "NOT id = 17",
        "id <> 17",
        "id = other",
        "id + 1 = 17",
        "id = 9007199254740993",
        "NOT paid",
        "id BETWEEN 17 AND 17",
        "id IS NULL",
        "kind IN (" + ", ".join(f"'{n}'" for n in range(65)) + ")",
        " OR ".join(f"id = {n}" for n in range(65)),
    ):
        assert equalities_of(text) == {}, text
