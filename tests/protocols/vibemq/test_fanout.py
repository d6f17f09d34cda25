"""FanOutWithAck: unacked messages of the last VibeMQ subscriber stay with the queue."""

from __future__ import annotations

import pytest

from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from tests.protocols.vibemq.harness import Harness, Peer


def fan_out(harness: Harness, **options: object) -> Peer:
    """Create the fan-out queue `f`, and return its publisher."""
    publisher = harness.connect()
    publisher.create("f", mode=1, **options)
    return publisher


@pytest.mark.parametrize("how", ["drop", "unsubscribe", "disconnect"])
def test_last_subscriber_reconnects_with_unacked_messages(harness: Harness, how: str) -> None:
    publisher = fan_out(harness)
    peer = harness.connect(SessionOptions(window=20))
    peer.subscribe("f")
    ids = [str(n) for n in range(40)]
    publisher.publish("f", *ids)
    assert peer.ids() == ids[:20]
    peer.acknowledge(*ids[:6])
    peer.frames()
    if how == "drop":
        peer.drop()
    elif how == "unsubscribe":
        peer.request(wire.UNSUBSCRIBE, "f")
    else:
        peer.send(wire.Frame(wire.DISCONNECT, "bye"))
    publisher.publish("f", "new")
    assert publisher.info("f")["messageCount"] == 35
    after = harness.connect()
    assert after.subscribe("f") == [*ids[6:], "new"]
    attempts = [frame.headers["deliveryAttempts"] for frame in after.more]
    attempted = 1 if how == "unsubscribe" else 20
    assert attempts == ["2"] * attempted + ["1"] * (35 - attempted)


def test_last_subscriber_reconnects_with_long_backlog(harness: Harness) -> None:
    publisher = fan_out(harness)
    peer = harness.connect()
    peer.subscribe("f")
    ids = [str(n) for n in range(1000)]
    publisher.publish("f", *ids)
    assert peer.ids() == ids[:256]
    assert harness.destination("f").waiting == 744
    peer.drop()
    after = harness.connect(SessionOptions(window=1000))
    assert after.subscribe("f") == ids
    attempts = [frame.headers["deliveryAttempts"] for frame in after.more]
    assert attempts == ["2"] * 256 + ["1"] * 744


def test_requeueing_to_full_queue_drops_nothing(harness: Harness) -> None:
    publisher = fan_out(harness, maxQueueSize=3)
    peer = harness.connect()
    peer.subscribe("f")
    for identity in "abcdef":
        publisher.publish("f", identity)
    assert peer.ids() == list("abcdef")
    peer.drop()
    assert harness.connect().subscribe("f") == list("abcdef")


def test_copies_of_other_subscribers_are_dropped_when_they_leave(harness: Harness) -> None:
    publisher = fan_out(harness, maxRetryAttempts=1, enableDeadLetterQueue=True)
    first, second = harness.connect(), harness.connect()
    first.subscribe("f")
    second.subscribe("f")
    publisher.publish("f", "1", "2")
    second.acknowledge("1")
    first.drop()
    assert harness.bodies("f.dlq") == []
    # the last one had begun 2, and that was the only attempt
    second.drop()
    assert harness.connect().subscribe("f") == []
    assert len(harness.bodies("f.dlq")) == 1


def test_fan_out_without_ack_retains_nothing(harness: Harness) -> None:
    publisher, peer = harness.connect(), harness.connect()
    publisher.create("f", mode=2)
    peer.subscribe("f")
    peer.transport.stalled = True
    publisher.publish("f", "1", "2")
    peer.drop()
    assert harness.destination("f").waiting == 0
    assert harness.connect().subscribe("f") == []


def test_subscription_of_another_protocol_does_not_count(harness: Harness) -> None:
    publisher = fan_out(harness)
    peer = harness.connect()
    peer.subscribe("f")
    broker = harness.broker
    other = broker.subscribe(harness.destination("f"), "jms", durable=True)
    publisher.publish("f", "1")
    peer.drop()
    publisher.publish("f", "2")
    assert other.waiting == 2
    # nor does it get messages that wait for VibeMQ subscribers
    late_subscription = broker.subscribe(harness.destination("f"), "late")
    assert late_subscription.waiting == 0
    assert harness.connect().subscribe("f") == ["1", "2"]
    assert other.waiting == 2


def test_only_first_subscriber_receives_backlog(harness: Harness) -> None:
    publisher = fan_out(harness)
    publisher.publish("f", "1")
    first, second = harness.connect(), harness.connect()
    assert first.subscribe("f") == ["1"]
    assert second.subscribe("f") == []
    publisher.publish("f", "2")
    assert first.ids() == second.ids() == ["2"]


def test_plain_topic_retains_nothing(harness: Harness) -> None:
    """A JMS topic does not retain messages."""
    topic = harness.broker.destinations.topic("t")
    peer, publisher = harness.connect(), harness.connect()
    peer.subscribe("t")
    publisher.publish("t", "1")
    peer.drop()
    assert topic.waiting == 0
    assert harness.connect().subscribe("t") == []
