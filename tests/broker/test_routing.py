"""Topics find the subscriptions that match a message without evaluating all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.broker import Subscription, compile_selector
from sluicemq.broker.routing import Routes
from sluicemq.model.message import Message, Property
from tests.broker.expressions import conditions, properties, to_text
from tests.support.broker import BrokerFixture, TypeSelector

equalities = st.builds(
    "{} = {} AND {}".format,
    st.sampled_from("ab"),
    st.sampled_from(["1", "1.0", "2", "'x'", "TRUE", "9007199254740993", "9007199254740992.0"]),
    st.sampled_from(["TRUE", "c = 1", "b = 'x'", "d > 1", "a IN ('x', 'xy')"]),
)
terms = st.tuples(
    st.none() | equalities | conditions.map(to_text), st.sampled_from([None, "me", "you"])
)


class CountingSelector:
    """A selector that counts its evaluations."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.compiled = compile_selector(text)
        self.equalities = self.compiled.equalities
        self.nodes = self.compiled.nodes
        self.calls = 0

    def __call__(self, message: Message) -> bool:
        self.calls += 1
        return self.compiled(message)


def subscribe_each(fixture: BrokerFixture, texts: list[str]) -> list[CountingSelector]:
    """Subscribe to topic t with each of the selectors."""
    selectors = [CountingSelector(text) for text in texts]
    for number, selector in enumerate(selectors):
        fixture.broker.subscribe(fixture.topic(), f"s{number}", selector=selector)
    return selectors


@settings(max_examples=300)
@given(
    st.lists(terms, max_size=12),
    st.sets(st.integers(0, 11)),
    st.lists(st.tuples(properties, st.sampled_from([None, "me", "you"])), max_size=6),
)
def test_the_index_finds_exactly_the_matching_subscriptions(
    terms_of_subscriptions: list[tuple[str | None, str | None]],
    leaving: set[int],
    sent: list[tuple[dict[str, Property] | None, str | None]],
) -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    subscriptions: list[Subscription] = []
    for number, (text, exclude) in enumerate(terms_of_subscriptions):
        selector = None if text is None else compile_selector(text)
        subscriptions.append(
            fixture.broker.subscribe(topic, f"s{number}", selector=selector, exclude=exclude)
        )
    for number in sorted(leaving, reverse=True):
        if number < len(subscriptions):
            fixture.broker.unsubscribe(subscriptions.pop(number))
    for fields, sender in sent:
        message = fixture.message(topic, "m", properties=fields, sender=sender)
        targets = topic.targets(message)
        assert len(targets) == len(set(targets))
        assert set(targets) == {s for s in subscriptions if s.accepts(message)}
    for subscription in subscriptions:
        fixture.broker.unsubscribe(subscription)
    routes = topic.routes
    assert (routes.routes, routes.unindexed, routes.indexes) == ({}, {}, {})


def test_only_subscriptions_whose_equality_holds_are_evaluated() -> None:
    fixture = BrokerFixture()
    selectors = subscribe_each(fixture, [f"id = {n} AND price > 3" for n in range(100)])
    fixture.send(fixture.topic(), "m", properties={"id": 17, "price": 4})
    assert [n for n, s in enumerate(selectors) if s.calls] == [17]
    fixture.send(fixture.topic(), "m", properties={"id": 17.0, "price": 2})
    fixture.send(fixture.topic(), "m", properties={"price": 4})
    assert sum(selector.calls for selector in selectors) == 2
    assert [s.waiting for s in fixture.topic().subscriptions.values()].count(1) == 1


def test_most_selective_equality_is_indexed() -> None:
    fixture = BrokerFixture()
    selectors = subscribe_each(fixture, [f"kind = 'order' AND id = {n}" for n in range(100)])
    fixture.send(fixture.topic(), "m", properties={"id": 17, "kind": "order"})
    assert sum(selector.calls for selector in selectors) <= 2


def test_selector_with_several_values_is_indexed() -> None:
    fixture = BrokerFixture()
    selectors = subscribe_each(
        fixture, ["kind IN ('x', 'y')", "kind = 'y' OR kind = 'z'", "kind = 'x'"]
    )
    for kind in ("x", "y", "z", "other"):
        fixture.send(fixture.topic(), "m", properties={"kind": kind})
    assert [selector.calls for selector in selectors] == [2, 2, 1]
    assert [s.waiting for s in fixture.topic().subscriptions.values()] == [2, 2, 1]


def test_contradictory_selectors_are_never_evaluated() -> None:
    fixture = BrokerFixture()
    [selector] = subscribe_each(fixture, ["kind = 'x' AND kind = 'y'"])
    fixture.send(fixture.topic(), "m", properties={"kind": "x"})
    assert selector.calls == 0
    fixture.broker.unsubscribe(next(iter(fixture.topic().subscriptions.values())))
    assert not fixture.topic().routes.routes


def test_replaced_subscription_receives_no_messages() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    fixture.broker.subscribe(topic, "s", durable=True, selector=compile_selector("a = 1"))
    changed_subscription = fixture.broker.subscribe(
        topic, "s", durable=True, selector=compile_selector("a = 2")
    )
    assert topic.targets(fixture.message(topic, "m", properties={"a": 1})) == []
    assert topic.targets(fixture.message(topic, "m", properties={"a": 2})) == [changed_subscription]


def test_subscription_of_same_name_replaces_other() -> None:
    """The journal of a crashed broker may contain two subscriptions of one name."""
    fixture = BrokerFixture()
    topic = fixture.topic()
    for number in (1, 2):
        topic.subscribe(Subscription(fixture.broker.core, topic, "s", number, TypeSelector("red")))
    message = fixture.message(topic, "m", type="red")
    assert [s.number for s in topic.targets(message)] == [2]


def test_routes_are_kept_by_text() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    routes: Routes[Subscription] = Routes()
    red, equal_selector = TypeSelector("red"), TypeSelector("red")
    first, second = (
        Subscription(fixture.broker.core, topic, "s", 0, s) for s in (red, equal_selector)
    )
    routes.add(first, red)
    routes.add(second, equal_selector)
    routes.remove(first, red)
    assert routes.targets(fixture.message(topic, "m", type="red")) == [second]
    routes.remove(second, equal_selector)
    assert not routes.routes
