"""Topics: non-durable, durable, shared and wildcard subscriptions, and no-local."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from sluicemq.broker import Destination, EngineSettings, Subscription, Window
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import DestinationPrivate
from sluicemq.model.message import Message
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.packets import PacketType, Status, W
from sluicemq.protocols.jmq.wire import Packet
from tests.protocols.jmq.harness import CountingDict, DiskHarness, Harness, Peer, status
from tests.support.broker import Reader
from tests.support.sessions import RecordedAccess

H = PacketType


def subscribe(peer: Peer, topic: str, size: int = 1000, **options: Any) -> int:
    return peer.consume(topic, peer.create_session(), topic=True, size=size, **options)


def add_consumer(peer: Peer, topic: str, **options: object) -> int:
    properties = {
        **peer.destination_properties(topic, True),
        "JMQSessionID": Long(peer.create_session()),
        **options,
    }
    return peer.request_status(H.ADD_CONSUMER, properties)


def publish(peer: Peer, topic: str, *texts: str, **options: Any) -> None:
    peer.send(topic, *texts, topic=True, **options)


# --- non-durable ---------------------------------------------------------------------------------


def test_every_subscriber_receives_every_message(harness: Harness) -> None:
    peers = [harness.connect() for _ in range(3)]
    for peer in peers:
        subscribe(peer, "t")
    publish(harness.connect(), "t", "a", "b")
    assert [peer.texts() for peer in peers] == [["a", "b"]] * 3


def test_subscription_ends_with_its_consumer(harness: Harness) -> None:
    peer = harness.connect()
    consumer = subscribe(peer, "t")
    publish(peer, "t", "a")
    [message] = peer.delivered()
    peer.close_consumer(consumer, message)
    assert harness.topic("t").subscriptions == {}
    peer.acknowledge(message)  # nothing becomes of it
    other = harness.connect()
    subscribe(other, "t")
    other.drop()
    assert harness.topic("t").subscriptions == {}


def test_consumer_continues_on_recreated_topic(harness: Harness) -> None:
    peer = harness.connect()
    subscribe(peer, "t")
    harness.broker.remove(harness.topic("t"), force=True)
    publish(harness.connect(), "t", "a")
    assert peer.texts() == ["a"]


def test_removed_subscription_is_not_recreated(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    subscribe(peer, "t", JMQDurableName="d")
    [subscription] = harness.topic("t").subscriptions.values()
    harness.broker.unsubscribe(subscription)
    publish(peer, "t", "a")
    assert peer.texts() == []
    assert harness.topic("t").subscriptions == {}


def test_no_local_applies_to_connection(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    subscribe(peer, "t", JMQNoLocal=True)
    publish(peer, "t", "mine")
    publish(other, "t", "theirs")
    assert peer.texts() == ["theirs"]
    properties = {**peer.destination_properties("q"), "JMQNoLocal": True}
    assert peer.request_status(H.ADD_CONSUMER, properties) == Status.ERROR


def test_no_local_of_connections_that_share_client_id(harness: Harness) -> None:
    peers = [harness.connect() for _ in range(3)]
    for peer in peers:
        properties = {"JMQClientID": "us", "JMQShare": True}
        peer.request(H.SET_CLIENTID, properties, expect=Status.OK)
    subscribe(peers[0], "t", JMQNoLocal=True)
    subscribe(peers[1], "t", JMQDurableName="d", JMQNoLocal=True)
    publish(peers[2], "t", "a")
    assert peers[0].texts() == ["a"]  # another connection
    assert peers[1].texts() == []  # the same client


def test_no_local_of_durable_subscription_applies_to_client_id(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "t", JMQDurableName="d", JMQNoLocal=True)
    publish(peer, "t", "mine")
    peer.close_consumer(consumer)
    peer.drop()
    reconnected = harness.connect(client_id="me")
    publish(reconnected, "t", "mine too")
    publish(harness.connect(client_id="other"), "t", "theirs")
    subscribe(reconnected, "t", JMQDurableName="d", JMQNoLocal=True)
    assert reconnected.texts() == ["theirs"]


def test_subscription_applies_its_selector(harness: Harness) -> None:
    peer = harness.connect()
    subscribe(peer, "t", JMQSelector="n > 1")
    publish(peer, "t", "a", properties={"n": 1})
    publish(peer, "t", "b", properties={"n": 2})
    assert peer.texts() == ["b"]
    peer.consume("q", peer.create_session(), JMQSelector="n > 1")
    peer.send("q", "c", properties={"n": 1})
    peer.send("q", "d", properties={"n": 2})
    assert peer.texts() == ["d"]
    assert harness.bodies("q") == [b"c", b"d"]
    assert add_consumer(peer, "t", JMQSelector="n >") == Status.BAD_REQUEST
    subscribe(peer, "u", JMQSelector=" ")
    publish(peer, "u", "e")
    assert peer.texts() == ["e"]


# --- durable -------------------------------------------------------------------------------------


def test_durable_subscription_keeps_messages_without_consumer(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "t", JMQDurableName="d")
    publish(peer, "t", "a")
    [message] = peer.delivered()
    peer.acknowledge(message)
    peer.close_consumer(consumer, message)
    publish(peer, "t", "b")
    peer.drop()
    publish(harness.connect(), "t", "c")
    reconnected = harness.connect(client_id="me")
    subscribe(reconnected, "t", JMQDurableName="d")
    assert reconnected.texts() == ["b", "c"]


def test_durable_subscription_is_on_disk_when_it_is_confirmed(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    properties = {**peer.destination_properties("t", True), "JMQDurableName": "d", "JMQSize": 10}
    peer.session.receive(peer.encode_request(H.ADD_CONSUMER, properties)[1])
    peer.session.receive(peer.message("t", b"x", topic=True, flags=0))
    peer.session.receive(peer.encode_request(H.STOP)[1])
    peer.session.receive(peer.encode_request(H.PING)[1])
    assert [p.type for p in peer.receive()] == [H.STOP_REPLY, H.PING_REPLY]
    harness.run_event_loop()
    assert [p.type for p in peer.receive()] == [H.ADD_CONSUMER_REPLY]
    peer.send_packet(H.START)
    assert peer.texts() == ["x"]
    number = next(iter(harness.topic("t").subscriptions.values())).number
    assert number


def test_nothing_is_delivered_before_subscription_is_confirmed(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    properties = {**peer.destination_properties("t", True), "JMQDurableName": "d", "JMQSize": 10}
    peer.session.receive(peer.encode_request(H.ADD_CONSUMER, properties)[1])
    for kind in (H.STOP, H.START):
        peer.session.receive(peer.encode_request(kind)[1])
    peer.session.receive(peer.message("t", b"x", topic=True, flags=0))
    harness.run_event_loop()
    kinds = [p.type for p in peer.receive()]
    assert kinds == [H.STOP_REPLY, H.ADD_CONSUMER_REPLY, 1]


def test_durable_subscription_has_one_consumer_at_time(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    subscribe(peer, "t", JMQDurableName="d")
    assert add_consumer(peer, "t", JMQDurableName="d") == Status.CONFLICT
    assert add_consumer(peer, "t", JMQDurableName="d", JMQShare=True) == Status.CONFLICT
    assert add_consumer(peer, "u", JMQDurableName="d") == Status.CONFLICT
    assert add_consumer(peer, "t", JMQDurableName="d", JMQSelector="a = 1") == Status.CONFLICT
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.CONFLICT
    subscribe(peer, "t", JMQDurableName="e")


def test_changed_options_replace_subscription(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    for topic, terms in (
        ("t", {}),
        ("t", {"JMQSelector": "n = 1"}),
        ("t", {"JMQNoLocal": True}),
        ("u", {}),
    ):
        consumer = subscribe(peer, topic, JMQDurableName="d", **terms)
        assert peer.texts() == []
        peer.close_consumer(consumer)
        publish(harness.connect(), topic, "x", properties={"n": 1})
    assert harness.topic("t").subscriptions == {}
    assert len(harness.topic("u").subscriptions) == 1


@pytest.mark.parametrize("topic", ["full", "full.*", "x.full.*"])
def test_refused_subscription_replaces_none(harness: Harness, topic: str) -> None:
    """`x.full.*` matches a topic that accepts the subscription before one that does not."""
    name = topic.replace(".*", ".b")
    peer = harness.connect(client_id="me")
    if topic.startswith("x"):
        publish(peer, "x.full.a", "1")
    harness.broker.destinations.declare(
        Address(Kind.TOPIC, name), DestinationSettings(max_subscriptions=1)
    )
    subscribe(harness.connect(), name)
    peer.close_consumer(subscribe(peer, "t", JMQDurableName="d"))
    publish(peer, "t", "2")
    assert add_consumer(peer, topic, JMQDurableName="d") == Status.RESOURCE_FULL
    publish(peer, name.replace(".b", ".c"), "3")
    subscribe(peer, "t", JMQDurableName="d")
    assert peer.texts() == ["2"]
    names = [list(t.subscriptions) for t in harness.broker.destinations.values() if t.name != "t"]
    assert "durable:me/d" not in str(names)


def test_wildcard_that_matched_nothing_is_replaced(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    peer.close_consumer(subscribe(peer, "a.*", JMQDurableName="d"))
    subscribe(peer, "t", JMQDurableName="d")
    publish(peer, "a.x", "1")
    assert harness.topic("a.x").subscriptions == {}


def test_durable_subscription_requires_client_id_and_permanent_topic(harness: Harness) -> None:
    peer = harness.connect()
    assert add_consumer(peer, "t", JMQDurableName="d") == Status.PRECONDITION_FAILED
    client = harness.connect(client_id="me")
    temporary = "temporary_destination://topic/x/1/1"
    client.create(temporary, topic=True, temporary=True)
    assert add_consumer(client, temporary, JMQDurableName="d") == Status.PRECONDITION_FAILED
    properties = {**client.destination_properties("q"), "JMQDurableName": "d"}
    assert client.request_status(H.ADD_CONSUMER, properties) == Status.ERROR


def test_unsubscribe_removes_durable_subscription(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.NOT_FOUND
    consumer = subscribe(peer, "t", JMQDurableName="d")
    peer.close_consumer(consumer)
    other = harness.connect(client_id="other")
    assert other.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.NOT_FOUND
    assert peer.request_status(H.DELETE_CONSUMER, {}) == Status.BAD_REQUEST
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.OK
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.NOT_FOUND
    assert harness.topic("t").subscriptions == {}
    consumer = subscribe(peer, "t", JMQDurableName="d")
    peer.close_consumer(consumer)
    without_client_id = harness.connect()
    properties = {"JMQDurableName": "d", "JMQClientID": "me"}
    assert without_client_id.request_status(H.DELETE_CONSUMER, properties) == Status.OK


def test_unsubscribe_with_unacked_message(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "t", JMQDurableName="d")
    publish(peer, "t", "a")
    [message] = peer.delivered()
    peer.close_consumer(consumer, message)
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.OK
    peer.acknowledge(message)


def close_and_unsubscribe(peer: Peer, consumer: int, name: str, expect: int) -> Packet:
    properties = {"JMQConsumerID": Long(consumer), "JMQDurableName": name}
    return peer.request(H.DELETE_CONSUMER, properties, expect=expect)


@pytest.mark.parametrize("topic", ["t", "t.*"])
def test_delete_consumer_may_close_and_unsubscribe(harness: Harness, topic: str) -> None:
    peer = harness.connect(client_id="me")
    peer.create("t.a", topic=True)
    consumer = subscribe(peer, topic, JMQDurableName="d")
    reply = close_and_unsubscribe(peer, consumer, "d", Status.OK)
    assert reply.properties["JMQConsumerID"] == consumer
    assert not harness.broker.durable_subscriptions
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.NOT_FOUND
    properties = {"JMQConsumerID": Long(consumer)}
    assert peer.request_status(H.DELETE_CONSUMER, properties) == Status.NOT_FOUND


def test_close_and_unsubscribe_is_atomic(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "t", JMQDurableName="d", JMQShare=True)
    other = subscribe(peer, "t", JMQDurableName="d", JMQShare=True)
    close_and_unsubscribe(peer, consumer, "d", Status.CONFLICT)
    close_and_unsubscribe(peer, consumer, "unknown", Status.NOT_FOUND)
    publish(peer, "t", "a", "b")
    assert {message.consumer_id for message in peer.delivered()} == {consumer, other}
    peer.close_consumer(other)
    close_and_unsubscribe(peer, consumer, "d", Status.OK)
    assert not harness.broker.durable_subscriptions


def test_unsubscribe_is_answered_when_removal_is_on_disk(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "t", JMQDurableName="d")
    properties = {"JMQConsumerID": Long(consumer), "JMQDurableName": "d"}
    peer.session.receive(peer.encode_request(H.DELETE_CONSUMER, properties)[1])
    assert peer.receive() == []
    harness.run_event_loop()
    [reply] = peer.receive()
    assert status(reply) == Status.OK


def test_durable_subscriptions_survive_restart(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    peer = harness.connect(client_id="me/too")
    subscribe(peer, "t", JMQDurableName="d 1", JMQSelector="n = 1", JMQNoLocal=True)
    subscribe(peer, "w.*", JMQDurableName="w")
    publish(peer, "w.a", "x")
    harness = harness.restart()
    publish(harness.connect(), "t", "a", properties={"n": 1})
    publish(harness.connect(), "t", "b", properties={"n": 2})
    publish(harness.connect(), "w.b", "y")
    reconnected = harness.connect(client_id="me/too")
    publish(reconnected, "t", "c", properties={"n": 1})
    assert add_consumer(reconnected, "t", JMQJMSShare=True, JMQDurableName="d 1") == Status.CONFLICT
    subscribe(reconnected, "t", JMQDurableName="d 1", JMQSelector="n = 1", JMQNoLocal=True)
    assert reconnected.texts() == ["a"]
    subscribe(reconnected, "w.*", JMQDurableName="w")
    assert sorted(reconnected.texts()) == ["x", "y"]


def test_durable_wildcard_without_topics_survives_restart(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    peer = harness.connect(client_id="me")
    subscribe(peer, "w.>", JMQDurableName="w", JMQSelector="n = 1")
    harness = harness.restart()
    sender = harness.connect()
    publish(sender, "w.a", "x", "y", properties={"n": 1})
    publish(sender, "w.b", "z", properties={"n": 2})
    reconnected = harness.connect(client_id="me")
    consumer = subscribe(reconnected, "w.>", JMQDurableName="w", JMQSelector="n = 1")
    assert reconnected.texts() == ["x", "y"]
    reconnected.close_consumer(consumer)
    assert reconnected.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "w"}) == Status.OK
    harness.run_event_loop()
    harness = harness.restart()
    assert not harness.broker.durable_subscriptions


def test_durable_subscriptions_of_deleted_topics_do_not_stay_in_memory() -> None:
    def count() -> int:
        gc.collect()
        return sum(type(item) is Subscription for item in gc.get_objects())

    harness = Harness()
    topic = harness.connect().destination_properties("t", topic=True)
    before = count()
    for number in range(300):
        peer = harness.connect(client_id=f"c{number}")
        peer.close_consumer(subscribe(peer, "t", JMQDurableName="d"))
        peer.request(H.DESTROY_DESTINATION, topic, expect=Status.OK)
        peer.drop()
    assert not harness.broker.durable_subscriptions
    assert count() < before + 150


def test_selectors_of_durable_wildcards_are_limited_for_each_topic_only() -> None:
    harness = Harness(EngineSettings(max_destination_selector_nodes=10))
    peer = harness.connect(client_id="me")
    for number in range(10):
        terms = {"JMQDurableName": f"d{number}", "JMQSelector": f"n > {number}"}
        subscribe(peer, f"t{number}.*", **terms)
    publish(peer, "a.x", "1")
    for number in range(3):
        subscribe(peer, "a.x", JMQSelector=f"n > {number}")
    assert add_consumer(peer, "a.x", JMQSelector="n > 3") == Status.RESOURCE_FULL


def test_no_protocol_publishes_to_topic_of_wildcards(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    subscribe(harness.connect(client_id="me"), "a.*", JMQDurableName="d")
    for _ in range(2):
        kept = harness.topic("mq.sys.wildcards")
        with pytest.raises(DestinationPrivate):
            harness.broker.publish(kept, Message(kept.address, b"x"))
        assert [subscription.waiting for subscription in kept.subscriptions.values()] == [0]
        harness = harness.restart()


def test_no_wildcard_matches_topic_of_wildcards(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    subscribe(peer, "mq.>", JMQDurableName="d")
    kept = harness.topic("mq.sys.wildcards")
    assert len(kept.subscriptions) == 1
    subscribe(peer, "mq.*.wildcards")
    assert len(kept.subscriptions) == 1
    publish(peer, "mq.sys.wildcards", "x", expect=Status.FORBIDDEN)


# --- shared --------------------------------------------------------------------------------------


def test_durable_subscription_may_be_shared(harness: Harness) -> None:
    peers = [harness.connect(), harness.connect()]
    for peer in peers:
        properties = {"JMQClientID": "us", "JMQShare": True}
        peer.request(H.SET_CLIENTID, properties, expect=Status.OK)
        subscribe(peer, "t", JMQDurableName="d", JMQShare=True)
    assert add_consumer(peers[0], "t", JMQDurableName="d") == Status.CONFLICT
    publish(harness.connect(), "t", *"abcd")
    texts = [peer.texts() for peer in peers]
    assert sorted(texts[0] + texts[1]) == ["a", "b", "c", "d"]
    assert all(texts)


def test_consumers_of_one_client_id_may_share_subscription(harness: Harness) -> None:
    peers = [harness.connect() for _ in range(3)]
    for peer in peers:
        properties = {"JMQClientID": "us", "JMQShare": True}
        peer.request(H.SET_CLIENTID, properties, expect=Status.OK)
    subscribe(peers[0], "t", JMQShare=True)
    subscribe(peers[1], "t", JMQShare=True)
    subscribe(peers[2], "t", JMQShare=True, JMQSelector="a IS NULL")
    publish(harness.connect(), "t", *"abcd")
    texts = [peer.texts() for peer in peers]
    assert sorted(texts[0] + texts[1]) == texts[2] == ["a", "b", "c", "d"]
    for peer in peers:
        peer.drop()
    assert harness.topic("t").subscriptions == {}


@pytest.mark.parametrize("client_id", ["", "me"])
def test_shared_consumers_of_jms_2(harness: Harness, client_id: str) -> None:
    peers = [harness.connect(client_id=client_id), harness.connect()]
    share: dict[str, Any] = {"JMQJMSShare": True, "JMQSharedSubscriptionName": "s"}
    consumer = subscribe(peers[0], "t", **share)
    subscribe(peers[1], "t", **share)
    publish(harness.connect(), "t", *"abcd")
    texts = [peer.texts() for peer in peers]
    if client_id:
        assert texts == [["a", "b", "c", "d"]] * 2
    else:
        assert sorted(texts[0] + texts[1]) == ["a", "b", "c", "d"]
    assert add_consumer(peers[0], "t", JMQJMSShare=True) == Status.BAD_REQUEST
    assert add_consumer(peers[0], "t", JMQSelector="a = 1", **share) == Status.CONFLICT
    peers[0].close_consumer(consumer)
    publish(harness.connect(), "t", "e")
    assert peers[1].texts()[-1] == "e"
    peers[1].drop()
    assert harness.topic("t").subscriptions == {}


def test_shared_subscription_has_one_topic(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    share: dict[str, Any] = {"JMQJMSShare": True, "JMQSharedSubscriptionName": "s"}
    consumers = [subscribe(peer, "t", **share) for _ in range(2)]
    assert add_consumer(other, "u", **share) == Status.CONFLICT
    peer.close_consumer(consumers[0])
    assert add_consumer(other, "u", **share) == Status.CONFLICT
    assert add_consumer(other, "t", JMQSelector="a = 1", **share) == Status.CONFLICT
    subscribe(harness.connect(client_id="me"), "u", **share)  # another name
    peer.close_consumer(consumers[1])
    subscribe(other, "u", **share)
    publish(peer, "u", "a")
    assert other.texts() == ["a"]
    other.drop()
    subscribe(peer, "t", **share)


def test_shared_durable_consumers_of_jms_2(harness: Harness) -> None:
    peer = harness.connect()
    share: dict[str, Any] = {"JMQJMSShare": True, "JMQDurableName": "s"}
    consumer = subscribe(peer, "t", **share)
    other = subscribe(harness.connect(), "t", **share)
    assert other != consumer
    peer.close_consumer(consumer)
    client = harness.connect(client_id="me")
    subscribe(client, "t", JMQDurableName="s")
    assert add_consumer(client, "t", **share) == Status.CONFLICT
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "s"}) == Status.CONFLICT


def test_shared_subscription_has_small_prefetch(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(shared_prefetch=2))
    share: dict[str, Any] = {"JMQJMSShare": True, "JMQSharedSubscriptionName": "s", "JMQSize": 100}
    properties = {**peer.destination_properties("t", True), **share}
    reply = peer.request(H.ADD_CONSUMER, properties, expect=Status.OK)
    assert reply.properties["JMQSize"] == 2


# --- wildcards -----------------------------------------------------------------------------------


def test_wildcard_subscription_covers_present_and_future_topics(harness: Harness) -> None:
    harness.broker.destinations.topic("a.x")
    harness.broker.destinations.topic("b.x")
    peer = harness.connect()
    consumer = subscribe(peer, "a.*")
    sender = harness.connect()
    for topic in ("a.x", "b.x", "a.y", "a.y.z"):
        publish(sender, topic, topic)
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"a.x", b"a.y"]
    assert [m.variable.destination for m in messages] == ["a.x", "a.y"]
    assert {m.consumer_id for m in messages} == {consumer}
    peer.redeliver(*messages, attempted=True)
    redelivered = peer.delivered()
    assert [m.variable.delivery_count for m in redelivered] == [2, 2]
    peer.acknowledge(*redelivered)
    peer.close_consumer(consumer)
    assert not harness.coordinator.durables.wildcard_consumers
    assert all(not t.subscriptions for t in harness.broker.destinations.values())


def test_end_of_wildcard_consumers_examines_no_others(harness: Harness) -> None:
    durables = harness.coordinator.durables
    durables.wildcard_consumers = wildcard_consumers = CountingDict()
    peers = [harness.connect() for _ in range(2)]
    for peer in peers:
        session = peer.create_session()
        for number in range(100):
            peer.consume(f"a{number}.*", session, topic=True)
    peers[1].drop()
    assert len(wildcard_consumers) == 100
    assert wildcard_consumers.visited == 0


def test_wildcard_subscription_has_one_prefetch_limit(harness: Harness) -> None:
    peer = harness.connect()
    consumer = subscribe(peer, ">", size=2)
    sender = harness.connect()
    for topic in ("a", "b", "c"):
        publish(sender, topic, topic)
    assert peer.texts() == ["a", "b"]
    peer.resume(consumer, 2)
    assert peer.texts() == ["c"]


def test_wildcard_subscription_with_several_consumers(harness: Harness) -> None:
    peers = [harness.connect(), harness.connect()]
    for peer in peers:
        subscribe(peer, "a.**", JMQJMSShare=True, JMQSharedSubscriptionName="s")
    publish(harness.connect(), "a.b", *"wxyz")
    assert sorted(peers[0].texts() + peers[1].texts()) == ["w", "x", "y", "z"]


def test_durable_wildcard(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "a.*", JMQDurableName="d")
    publish(peer, "a.x", "1")
    peer.acknowledge(*peer.delivered())
    peer.close_consumer(consumer)
    publish(peer, "a.y", "2")  # it has come into being meanwhile
    consumer = subscribe(peer, "a.*", JMQDurableName="d")
    assert peer.texts() == ["2"]
    assert add_consumer(peer, "a.x", JMQDurableName="d") == Status.CONFLICT
    peer.close_consumer(consumer)
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.OK
    publish(peer, "a.z", "3")
    assert all(not t.subscriptions for t in harness.broker.destinations.values())


def test_durable_wildcard_subscription_before_any_topic_matches(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "a.*", JMQDurableName="d")
    peer.close_consumer(consumer)
    publish(peer, "a.x", "1")
    consumer = subscribe(peer, "a.*", JMQDurableName="d")
    assert peer.texts() == ["1"]
    peer.close_consumer(consumer)
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.OK


def test_durable_wildcard_without_topics_is_reported_as_in_use(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    consumer = subscribe(peer, "a.*", JMQDurableName="d")
    for topic in ("a.*", "b.*", "t"):
        assert add_consumer(peer, topic, JMQDurableName="d") == Status.CONFLICT
    shared = {"JMQDurableName": "d", "JMQJMSShare": True}
    assert add_consumer(peer, "a.*", **shared) == Status.CONFLICT
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.CONFLICT
    properties = {"JMQConsumerID": Long(consumer), "JMQDurableName": "d"}
    assert peer.request_status(H.DELETE_CONSUMER, properties) == Status.OK
    consumers = [subscribe(peer, "a.*", **shared) for _ in range(2)]
    publish(peer, "a.x", "1", "2")
    assert {packet.consumer_id for packet in peer.delivered()} == set(consumers)
    assert add_consumer(peer, "b.*", **shared) == Status.CONFLICT


def test_wildcards_do_not_match_temporary_and_reserved_topics(harness: Harness) -> None:
    peer = harness.connect()
    subscribe(peer, ">")
    other = harness.connect()
    temporary = "temporary_destination://topic/x/1/1"
    other.create(temporary, topic=True, temporary=True)
    publish(other, temporary, "private")
    harness.broker.destinations.topic("mq.metrics.jvm")
    assert harness.topic("mq.metrics.jvm").subscriptions == {}
    assert peer.texts() == []
    properties = peer.destination_properties("a.*")
    assert peer.request_status(H.ADD_CONSUMER, properties) == Status.UNSUPPORTED_TYPE


def test_wildcards_are_marked(harness: Harness) -> None:
    peer = harness.connect()
    for kind in (H.CREATE_DESTINATION, H.VERIFY_DESTINATION):
        reply = peer.request(kind, peer.destination_properties("a.*", True), expect=Status.OK)
        assert reply.flags & W
        assert (
            not peer.request(H.CREATE_DESTINATION, peer.destination_properties("a", True)).flags & W
        )
    assert harness.broker.destinations.find(Address(Kind.TOPIC, "a.*")) is None


# --- permissions ---------------------------------------------------------------------------------


def test_subscribing_requires_consume_permission(harness: Harness) -> None:
    access = RecordedAccess("a.*: consume")
    peer = harness.connect(access=access, client_id="me")
    subscribe(peer, "a.b")
    subscribe(peer, "a.>")
    assert add_consumer(peer, "b") == Status.FORBIDDEN
    assert add_consumer(peer, ">") == Status.FORBIDDEN
    assert add_consumer(peer, "*", JMQDurableName="d") == Status.FORBIDDEN
    assert peer.request_status(H.ADD_CONSUMER, peer.destination_properties("q")) == Status.FORBIDDEN
    assert access.denials == [f"test anna consume {name}" for name in ("b", "*", "*", "q")]


@pytest.mark.parametrize(("right", "pattern"), [("a.*", "a.>"), ("*.*", "*.>")])
def test_wildcard_matches_only_what_its_permission_covers(
    harness: Harness, right: str, pattern: str
) -> None:
    owner = harness.connect()
    subscribe(owner, "a")
    peer = harness.connect(access=RecordedAccess(f"{right}: consume produce"))
    assert add_consumer(peer, "a") == Status.FORBIDDEN
    subscribe(peer, pattern)
    publish(owner, "a", "1")
    publish(owner, "a.b", "2")
    publish(peer, pattern, "3")
    assert owner.texts() == ["1"]
    assert peer.texts() == ["2", "3"]


def test_temporary_destinations_belong_to_their_connection(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    for topic in (False, True):
        name = f"temporary_destination://{'topic' if topic else 'queue'}/x/1/1"
        assert peer.create(name, topic, temporary=True) == Status.OK
        assert other.create(name, topic, temporary=True) == Status.CONFLICT
        assert other.create(name, topic) == Status.OK
        peer.consume(name, peer.create_session(), topic=topic)
        assert (
            other.request_status(H.ADD_CONSUMER, other.destination_properties(name, topic))
            == Status.NOT_ALLOWED
        )
        properties = peer.destination_properties(name, topic, temporary=True)
        assert other.request_status(H.DESTROY_DESTINATION, properties) == Status.FORBIDDEN
        assert peer.request_status(H.DESTROY_DESTINATION, properties) == Status.CONFLICT  # in use
    peer.drop()
    assert (
        other.request_status(H.ADD_CONSUMER, other.destination_properties(name, True))
        == Status.NOT_FOUND
    )
    assert other.create(name, topic) == Status.NOT_FOUND


def test_destroy_without_permission_does_not_reveal_existence(harness: Harness) -> None:
    owner = harness.connect()
    owner.send("there", "x")
    owner.create("private", temporary=True)
    peer = harness.connect(access=RecordedAccess("mine: delete"))
    for name in ("there", "private", "missing"):
        reply = peer.request(H.DESTROY_DESTINATION, peer.destination_properties(name))
        assert status(reply) == Status.FORBIDDEN
        assert reply.properties["JMQReason"] == f"anna may not delete '{name}'"
    properties = peer.destination_properties("mine")
    assert peer.request_status(H.DESTROY_DESTINATION, properties) == Status.NOT_FOUND


def test_destination_that_cannot_be_created_is_refused() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False, auto_create_topics=False))
    peer = harness.connect()
    assert peer.create("q") == Status.FORBIDDEN
    assert add_consumer(peer, "t") == Status.NOT_FOUND
    reply = peer.request(H.VERIFY_DESTINATION, peer.destination_properties("q"))
    assert status(reply) == Status.NOT_FOUND
    assert reply.properties["JMQCanCreate"] is False
    assert peer.create("mq.sys.dmq") == Status.OK
    assert peer.create("mq.anything") == Status.OK  # as far as it goes
    assert (
        peer.request_status(H.ADD_CONSUMER, peer.destination_properties("mq.anything"))
        == Status.ERROR
    )
    peer.consume("mq.sys.dmq", peer.create_session())
    subscribe(peer, "mq.metrics.destination.queue.q")
    assert harness.topic("mq.metrics.destination.queue.q").automatic
    assert add_consumer(peer, "mq.other") == Status.ERROR


def test_max_consumers_refuses_further_consumers(harness: Harness) -> None:
    harness.broker.destinations.declare(
        Address(Kind.TOPIC, "t"), DestinationSettings(max_subscriptions=1)
    )
    peer = harness.connect()
    subscribe(peer, "t")
    assert add_consumer(peer, "t") == Status.RESOURCE_FULL
    assert len(harness.topic("t").subscriptions) == 1


def test_requests_without_reply_requested_are_executed(harness: Harness) -> None:
    peer = harness.connect()
    peer.send_packet(H.CREATE_DESTINATION, peer.destination_properties("a.*", True))
    peer.send_packet(H.VERIFY_DESTINATION, peer.destination_properties("a.*", True))
    peer.send_packet(H.CREATE_DESTINATION, peer.destination_properties("q"))
    peer.send_packet(H.ADD_CONSUMER, peer.destination_properties("a.*"))
    assert peer.receive() == []
    assert harness.find("q") is not None


# --- flavours of queues --------------------------------------------------------------------------


def create(peer: Peer, bits: int, name: str = "q") -> Packet:
    return peer.request(H.CREATE_DESTINATION, {"JMQDestination": name, "JMQDestType": bits})


@pytest.mark.parametrize("name", ["q", "temporary_destination://queue/1"])
def test_single_receiver_queue_has_one_consumer(harness: Harness, name: str) -> None:
    peer = harness.connect()
    bits = 0x101 if name == "q" else 0x111
    assert create(peer, bits, name).properties["JMQDestType"] == bits
    consumer = peer.consume(name, peer.create_session())
    assert peer.request_status(H.ADD_CONSUMER, peer.destination_properties(name)) == Status.CONFLICT
    peer.close_consumer(consumer)
    peer.consume(name, peer.create_session())  # as soon as the answer is there


def test_failover_queue_serves_its_first_consumer(harness: Harness) -> None:
    peer = harness.connect()
    create(peer, 0x401)
    first, second = (peer.consume("q", peer.create_session()) for _ in range(2))
    peer.send("q", "a", "b")
    assert {message.consumer_id for message in peer.delivered()} == {first}
    peer.close_consumer(first)
    assert {message.consumer_id for message in peer.delivered()} == {second}


def test_failover_queue_also_serves_one_of_consumers_that_waited_for_it(harness: Harness) -> None:
    readers = [Reader(harness.broker) for _ in range(2)]

    def attach(queue: Destination) -> None:
        for reader in readers:
            reader.consumer = harness.broker.attach(queue.queue, reader, Window(1, True))

    harness.broker.destinations.await_creation("q", attach)
    peer = harness.connect()
    create(peer, 0x401)
    peer.consume("q", peer.create_session())
    assert [consumer.active for consumer in harness.queue("q").queue.consumers] == [
        True,
        False,
        False,
    ]


def test_round_robin_queue_serves_all_whatever_default_is() -> None:
    defaults = DestinationSettings(max_consumers=1)
    peer = Harness(EngineSettings(default_destination=defaults)).connect()
    create(peer, 0x201)
    consumers = {peer.consume("q", peer.create_session()) for _ in range(2)}
    peer.send("q", "a", "b")
    assert {message.consumer_id for message in peer.delivered()} == consumers


def test_queue_that_exists_keeps_its_flavour(harness: Harness) -> None:
    peer = harness.connect()
    create(peer, 0x101)
    assert create(peer, 0x401).properties["JMQDestType"] == 0x101
    assert create(peer, 0x001).properties["JMQDestType"] == 0x101
    reply = peer.request(H.VERIFY_DESTINATION, peer.destination_properties("q"))
    assert reply.properties["JMQDestType"] == 0x121
    assert harness.queue("q").settings.max_consumers == 1
    create(peer, 0x201, "r")
    assert create(peer, 0x101, "r").properties["JMQDestType"] == 0x001
    assert create(peer, 0x201, "r").properties["JMQDestType"] == 0x201


def test_flavour_survives_restart(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    peer = harness.connect()
    create(peer, 0x101)
    peer.send("q", "a")
    assert harness.restart().queue("q").settings.max_consumers == 1


def test_contradictory_queue_flavours_are_refused(harness: Harness) -> None:
    peer = harness.connect()
    assert status(create(peer, 0x301)) == Status.BAD_REQUEST
    assert harness.find("q") is None
    assert status(create(peer, 0x102, "t")) == Status.OK  # topics have none
    assert harness.topic("t").settings.max_consumers == 0
