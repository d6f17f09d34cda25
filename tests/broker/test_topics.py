"""Topics: delivery of copies to subscriptions and their retention."""

from __future__ import annotations

import pytest

from sluicemq.journal.format import MAX_REFERENCES
from sluicemq.model.errors import LimitExceeded, SubscriptionInUse
from tests.support.broker import BrokerFixture, TypeSelector, bodies


def test_message_for_many_subscriptions_is_in_memory_once() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    readers = [fixture.read(fixture.broker.subscribe(topic, name)) for name in "stu"]
    fixture.send(topic, "hello")
    assert [reader.got() for reader in readers] == [["hello"]] * 3
    assert fixture.broker.core.memory == len("hello")
    for reader in readers:
        reader.acknowledge()
    assert fixture.broker.core.memory == 0


def test_message_without_subscriptions_is_dropped() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    fixture.send(topic, "a")
    assert fixture.read(fixture.broker.subscribe(topic, "s")).got() == []
    assert fixture.journal.stats().live == 0


def test_journal_keeps_message_until_last_durable_subscription_acks_it() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    first, second = (
        fixture.read(fixture.broker.subscribe(topic, name, durable=True)) for name in ("s", "t")
    )
    fixture.send(topic, "a")
    first.acknowledge()
    assert fixture.journal.stats().live == 1
    second.acknowledge()
    assert fixture.journal.stats().live == 0


def test_durable_subscription_keeps_messages_without_consumers() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    subscription = fixture.broker.subscribe(topic, "s", durable=True)
    fixture.read(subscription).detach()
    fixture.send(topic, "a")
    assert fixture.broker.subscribe(topic, "s", durable=True) is subscription
    assert fixture.read(subscription).got() == ["a"]


def test_subscription_has_one_consumer_unless_it_is_shared() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    subscription = fixture.broker.subscribe(topic, "alone")
    fixture.read(subscription)
    with pytest.raises(SubscriptionInUse):
        fixture.read(subscription)


def test_consumers_of_shared_subscription_share_its_messages() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    subscription = fixture.broker.subscribe(topic, "shared", shared=True)
    first, second = fixture.read(subscription), fixture.read(subscription)
    fixture.send(topic, "a", "b")
    assert (first.got(), second.got()) == (["a"], ["b"])


def test_no_local_omits_messages_of_its_sender() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    reader_of_others = fixture.read(fixture.broker.subscribe(topic, "s", exclude="me"))
    reader_of_all = fixture.read(fixture.broker.subscribe(topic, "t"))
    fixture.send(topic, "mine", sender="me")
    fixture.send(topic, "yours", sender="you")
    assert (reader_of_others.got(), reader_of_all.got()) == (["yours"], ["mine", "yours"])


def test_no_local_and_selector_both_apply() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    # a selector without no-local, whose result does not apply to the other one
    fixture.broker.subscribe(topic, "plain", selector=TypeSelector("red"))
    reader = fixture.read(
        fixture.broker.subscribe(topic, "s", exclude="me", selector=TypeSelector("red"))
    )
    fixture.send(topic, "mine", sender="me", type="red")
    fixture.send(topic, "blue", sender="you", type="blue")
    fixture.send(topic, "yours", sender="you", type="red")
    assert reader.got() == ["yours"]


def test_changed_options_replace_subscription_and_drop_its_messages() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    fixture.broker.subscribe(topic, "s", durable=True)
    fixture.send(topic, "old", type="red")
    changed_subscription = fixture.broker.subscribe(
        topic, "s", durable=True, selector=TypeSelector("red")
    )
    fixture.send(topic, "new", type="red")
    assert fixture.read(changed_subscription).got() == ["new"]
    assert fixture.journal.stats().live == 1


def test_options_cannot_change_while_subscription_has_consumer() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    reader = fixture.read(fixture.broker.subscribe(topic, "s", durable=True))
    with pytest.raises(SubscriptionInUse):
        fixture.broker.subscribe(topic, "s", durable=True, shared=True)
    fixture.send(topic, "a")
    assert reader.got() == ["a"]


def test_unsubscribing_drops_messages_and_notifies_consumer() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    subscription = fixture.broker.subscribe(topic, "s", durable=True)
    reader = fixture.read(subscription, 1)
    fixture.send(topic, "a", "b")
    fixture.broker.unsubscribe(subscription)
    fixture.send(topic, "c")
    assert reader.detachments == 1
    assert reader.got() == ["a"]
    assert (topic.waiting, topic.unacked, topic.consumers) == (0, 0, 0)
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)


def test_unsubscribing_before_message_is_durable_drops_it_too() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    subscription = fixture.broker.subscribe(topic, "s", durable=True)
    fixture.broker.publish(topic, fixture.message(topic, "a"))
    fixture.broker.unsubscribe(subscription)
    fixture.broker.flush()
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)


def test_max_subscriptions_counts_names_not_calls() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(max_subscriptions=1)
    fixture.broker.subscribe(topic, "s")
    fixture.broker.subscribe(topic, "s")
    with pytest.raises(LimitExceeded):
        fixture.broker.subscribe(topic, "t")


def test_retained_messages_go_to_first_matching_subscription() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(retain_without_subscriptions=True)
    fixture.send(topic, "red", type="red")
    fixture.send(topic, "blue", type="blue")
    assert topic.waiting == 2
    first_reader = fixture.read(
        fixture.broker.subscribe(topic, "red", selector=TypeSelector("red"))
    )
    second_reader = fixture.read(fixture.broker.subscribe(topic, "everything"))
    third_reader = fixture.read(fixture.broker.subscribe(topic, "too late"))
    assert (first_reader.got(), second_reader.got(), third_reader.got()) == (["red"], ["blue"], [])
    first_reader.acknowledge()
    second_reader.acknowledge()
    assert fixture.journal.stats().live == 0


def test_retained_message_that_is_not_durable_reaches_later_subscriptions() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(retain_without_subscriptions=True)
    fixture.broker.publish(topic, fixture.message(topic, "a"))
    reader = fixture.read(fixture.broker.subscribe(topic, "s"))
    fixture.broker.flush()
    assert reader.got() == ["a"]
    assert bodies(topic) == []


def test_retained_message_is_delivered_once_if_another_subscription_ended() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(retain_without_subscriptions=True)
    durable_reader = fixture.read(fixture.broker.subscribe(topic, "durable", durable=True))
    ended_subscription = fixture.broker.subscribe(topic, "ended")
    fixture.broker.publish(topic, fixture.message(topic, "a"))
    fixture.broker.unsubscribe(ended_subscription)
    fixture.broker.flush()
    assert durable_reader.got() == ["a"]
    durable_reader.acknowledge()
    assert (topic.waiting, topic.unacked) == (1, 0)
    next_reader = fixture.read(fixture.broker.subscribe(topic, "next"))
    assert next_reader.got() == ["a"]
    next_reader.acknowledge()
    assert fixture.journal.stats().live == 0


def test_durable_subscriptions_are_limited_by_references_of_record() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    for number in range(MAX_REFERENCES - 1):
        fixture.broker.subscribe(topic, f"s{number}", durable=True)
    with pytest.raises(LimitExceeded, match="65534 durable subscriptions"):
        fixture.broker.subscribe(topic, "another", durable=True)
    assert fixture.broker.subscribe(topic, "s0", durable=True).durable
    fixture.broker.subscribe(topic, "not durable")
    fixture.send(topic, "a")
    assert topic.subscriptions["s0"].waiting == 1
