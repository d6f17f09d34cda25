"""Load of all selectors of a destination on one message, and its limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluicemq.broker import EngineSettings, Subscription, compile_selector
from sluicemq.broker.routing import Routes
from sluicemq.model.errors import LimitExceeded
from sluicemq.model.message import Durability, Message, Property
from tests.broker.expressions import conditions, properties, to_text
from tests.support.broker import BrokerFixture

TEXTS = st.one_of(
    st.builds("a = {} AND c > 1".format, st.integers(0, 3)),
    st.builds("b IN ('x', 'y') AND a = {}".format, st.integers(0, 3)),
    conditions.map(to_text),
)


@settings(max_examples=200)
@given(st.lists(TEXTS, unique=True, max_size=12), st.lists(properties, max_size=5), st.data())
def test_no_message_is_evaluated_with_more_nodes_than_the_load(
    texts: list[str], sent: list[dict[str, Property] | None], data: st.DataObject
) -> None:
    evaluated = 0

    class CountingSelector:
        def __init__(self, text: str) -> None:
            self.compiled = compile_selector(text)
            self.text = text
            self.equalities = self.compiled.equalities
            self.nodes = self.compiled.nodes

        def __call__(self, message: Message) -> bool:
            nonlocal evaluated
            evaluated += self.nodes
            return self.compiled(message)

    routes: Routes[str] = Routes()
    selectors = [CountingSelector(text) for text in texts]
    for selector in selectors:
        expected = routes.load_with(selector)
        routes.add(selector.text, selector)
        assert routes.load == expected
    while True:
        for fields in sent:
            evaluated = 0
            routes.targets(Message(BrokerFixture().queue().address, b"", properties=fields))
            assert evaluated <= routes.load
        if not selectors:
            break
        selector = selectors.pop(data.draw(st.integers(0, len(selectors) - 1)))
        routes.remove(selector.text, selector)
    assert routes.load == 0


def limited(nodes: int) -> BrokerFixture:
    return BrokerFixture(EngineSettings(max_destination_selector_nodes=nodes))


def test_topic_refuses_selectors_above_its_load_limit() -> None:
    fixture = limited(14)
    topic = fixture.topic()
    for number in range(2):
        text = f"a > {number} AND b > 1"
        fixture.broker.subscribe(topic, f"s{number}", selector=compile_selector(text))
    with pytest.raises(LimitExceeded, match="max_destination_selector_nodes"):
        fixture.broker.subscribe(topic, "s2", selector=compile_selector("a"))
    # further consumers with the same selector or without one add no load
    fixture.broker.subscribe(topic, "s3", selector=compile_selector("a > 0 AND b > 1"))
    fixture.broker.subscribe(topic, "s4")
    fixture.broker.unsubscribe(topic.subscriptions["s1"])
    fixture.broker.subscribe(topic, "s2", selector=compile_selector("a"))


def test_values_of_one_property_do_not_add_up() -> None:
    fixture = limited(10)
    for number in range(100):
        selector = compile_selector(f"id = {number} AND a > 1")
        fixture.broker.subscribe(fixture.topic(), f"s{number}", selector=selector)
    with pytest.raises(LimitExceeded):
        fixture.broker.subscribe(
            fixture.topic(), "s", selector=compile_selector("id = 1 AND a > 2")
        )
    assert len(fixture.topic().subscriptions) == 100


def test_limit_of_0_means_unlimited() -> None:
    fixture = limited(0)
    for number in range(100):
        selector = compile_selector(f"a > {number}")
        fixture.broker.subscribe(fixture.topic(), f"s{number}", selector=selector)


@pytest.mark.parametrize("waiting", [0, 2000])
def test_queue_refuses_selectors_before_evaluating_its_backlog(waiting: int) -> None:
    fixture = limited(12)
    queue = fixture.queue()
    fixture.send(queue, *["x"] * waiting, durability=Durability.NONE)
    readers = [fixture.read(queue, selector=compile_selector(f"a > {n}")) for n in range(4)]
    with pytest.raises(LimitExceeded):
        fixture.read(queue, selector=compile_selector("a > 4"))
    assert len(queue.queue.consumers) == 4
    fixture.read(queue, selector=compile_selector("a > 3"))
    fixture.read(queue)
    readers[0].detach()
    fixture.read(queue, selector=compile_selector("a > 5"))


def test_existing_durable_subscription_is_found_whatever_limit() -> None:
    fixture = limited(0)
    selector = compile_selector("a > 1 AND b > 1")

    def subscribe() -> Subscription:
        return fixture.broker.subscribe(fixture.topic(), "s", durable=True, selector=selector)

    subscription = subscribe()
    core = fixture.broker.core
    core.settings = replace(core.settings, max_destination_selector_nodes=1)
    assert subscribe() is subscription
