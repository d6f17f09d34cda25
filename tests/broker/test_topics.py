"""Topics: who gets a copy, and who keeps it."""

from __future__ import annotations

import pytest

from sluicemq.model.errors import LimitExceeded, SubscriptionInUse
from tests.broker.support import OfType, Rig, bodies


def test_every_subscription_gets_every_message_and_memory_holds_it_once() -> None:
    rig = Rig()
    topic = rig.topic()
    readers = [rig.read(rig.broker.subscribe(topic, name)) for name in "stu"]
    rig.send(topic, "hello")
    assert [reader.got() for reader in readers] == [["hello"]] * 3
    assert rig.broker.core.memory == len("hello")
    for reader in readers:
        reader.settle()
    assert rig.broker.core.memory == 0


def test_a_message_without_subscriptions_is_not_kept() -> None:
    rig = Rig()
    topic = rig.topic()
    rig.send(topic, "a")
    assert rig.read(rig.broker.subscribe(topic, "s")).got() == []
    assert rig.journal.stats().live == 0


def test_the_journal_keeps_a_message_until_the_last_durable_subscription_settled_it() -> None:
    rig = Rig()
    topic = rig.topic()
    first, second = (
        rig.read(rig.broker.subscribe(topic, name, durable=True)) for name in ("s", "t")
    )
    rig.send(topic, "a")
    first.settle()
    assert rig.journal.stats().live == 1
    second.settle()
    assert rig.journal.stats().live == 0


def test_a_durable_subscription_keeps_messages_while_nobody_reads() -> None:
    rig = Rig()
    topic = rig.topic()
    subscription = rig.broker.subscribe(topic, "s", durable=True)
    rig.read(subscription).detach()
    rig.send(topic, "a")
    assert rig.broker.subscribe(topic, "s", durable=True) is subscription
    assert rig.read(subscription).got() == ["a"]


def test_a_subscription_has_one_consumer_unless_it_is_shared() -> None:
    rig = Rig()
    topic = rig.topic()
    alone = rig.broker.subscribe(topic, "alone")
    rig.read(alone)
    with pytest.raises(SubscriptionInUse):
        rig.read(alone)


def test_consumers_of_a_shared_subscription_share_its_messages() -> None:
    rig = Rig()
    topic = rig.topic()
    shared = rig.broker.subscribe(topic, "shared", shared=True)
    first, second = rig.read(shared), rig.read(shared)
    rig.send(topic, "a", "b")
    assert (first.got(), second.got()) == (["a"], ["b"])


def test_no_local_leaves_out_the_messages_of_one_sender() -> None:
    rig = Rig()
    topic = rig.topic()
    others = rig.read(rig.broker.subscribe(topic, "s", exclude="me"))
    everyone = rig.read(rig.broker.subscribe(topic, "t"))
    rig.send(topic, "mine", sender="me")
    rig.send(topic, "yours", sender="you")
    assert (others.got(), everyone.got()) == (["yours"], ["mine", "yours"])


def test_no_local_and_a_selector_must_both_agree() -> None:
    rig = Rig()
    topic = rig.topic()
    rig.broker.subscribe(topic, "plain", selector=OfType("red"))  # its verdict is not for others
    reader = rig.read(rig.broker.subscribe(topic, "s", exclude="me", selector=OfType("red")))
    rig.send(topic, "mine", sender="me", type="red")
    rig.send(topic, "blue", sender="you", type="blue")
    rig.send(topic, "yours", sender="you", type="red")
    assert reader.got() == ["yours"]


def test_changed_terms_replace_a_subscription_and_what_it_held() -> None:
    rig = Rig()
    topic = rig.topic()
    rig.broker.subscribe(topic, "s", durable=True)
    rig.send(topic, "old", type="red")
    changed = rig.broker.subscribe(topic, "s", durable=True, selector=OfType("red"))
    rig.send(topic, "new", type="red")
    assert rig.read(changed).got() == ["new"]
    assert rig.journal.stats().live == 1


def test_terms_cannot_change_while_the_subscription_is_read() -> None:
    rig = Rig()
    topic = rig.topic()
    reader = rig.read(rig.broker.subscribe(topic, "s", durable=True))
    with pytest.raises(SubscriptionInUse):
        rig.broker.subscribe(topic, "s", durable=True, shared=True)
    rig.send(topic, "a")
    assert reader.got() == ["a"]


def test_unsubscribing_drops_what_was_held_and_tells_the_consumer() -> None:
    rig = Rig()
    topic = rig.topic()
    subscription = rig.broker.subscribe(topic, "s", durable=True)
    reader = rig.read(subscription, 1)
    rig.send(topic, "a", "b")
    rig.broker.unsubscribe(subscription)
    rig.send(topic, "c")
    assert reader.detachments == 1
    assert reader.got() == ["a"]
    assert (topic.waiting, topic.unacked, topic.consumers) == (0, 0, 0)
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)


def test_unsubscribing_before_the_message_is_durable_drops_it_too() -> None:
    rig = Rig()
    topic = rig.topic()
    subscription = rig.broker.subscribe(topic, "s", durable=True)
    rig.broker.publish(topic, rig.message(topic, "a"))
    rig.broker.unsubscribe(subscription)
    rig.broker.flush()
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)


def test_max_subscriptions_counts_names_not_calls() -> None:
    rig = Rig()
    topic = rig.topic(max_subscriptions=1)
    rig.broker.subscribe(topic, "s")
    rig.broker.subscribe(topic, "s")
    with pytest.raises(LimitExceeded):
        rig.broker.subscribe(topic, "t")


def test_a_topic_that_holds_gives_its_messages_to_the_first_who_wants_them() -> None:
    rig = Rig()
    topic = rig.topic(hold=True)
    rig.send(topic, "red", type="red")
    rig.send(topic, "blue", type="blue")
    assert topic.waiting == 2
    red = rig.read(rig.broker.subscribe(topic, "red", selector=OfType("red")))
    everything = rig.read(rig.broker.subscribe(topic, "everything"))
    none = rig.read(rig.broker.subscribe(topic, "too late"))
    assert (red.got(), everything.got(), none.got()) == (["red"], ["blue"], [])
    red.settle()
    everything.settle()
    assert rig.journal.stats().live == 0


def test_a_held_message_that_was_not_durable_yet_reaches_who_subscribed_meanwhile() -> None:
    rig = Rig()
    topic = rig.topic(hold=True)
    rig.broker.publish(topic, rig.message(topic, "a"))
    reader = rig.read(rig.broker.subscribe(topic, "s"))
    rig.broker.flush()
    assert reader.got() == ["a"]
    assert bodies(topic) == []
