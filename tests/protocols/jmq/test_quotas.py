"""Limits per connection and per user."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.access import Identity, Operation, Permission
from sluicemq.protocols.jmq.fields import TEMPORARY_QUEUE
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.security.access import Access
from tests.protocols.jmq.harness import Harness, Peer, status

EVERYTHING = [Permission("*", frozenset(Operation))]


def user(name: str, superuser: bool = False) -> Access:
    return Access(Identity(name, EVERYTHING, superuser))


def create(peer: Peer, name: str, temporary: bool = False) -> int:
    reply = peer.request(
        PacketType.CREATE_DESTINATION, peer.destination_properties(name, temporary=temporary)
    )
    assert "limit" in str(reply.properties.get("JMQReason", "limit"))
    return status(reply)


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    harness.broker.core.settings = EngineSettings(
        max_destinations_per_user=4,
        max_temporary_destinations_per_connection=2,
        max_subscriptions_per_user=2,
    )
    return harness


def test_number_of_temporary_queues_of_connection_is_limited(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    names = [f"{TEMPORARY_QUEUE}{number}" for number in range(4)]
    assert create(peer, names[0], True) == create(peer, names[1], True) == Status.OK
    assert create(peer, names[2], True) == Status.RESOURCE_FULL
    assert create(other, names[2], True) == Status.OK
    peer.request(
        PacketType.DESTROY_DESTINATION, peer.destination_properties(names[0], temporary=True)
    )
    assert create(peer, names[3], True) == Status.OK


def test_number_of_queues_of_user_is_limited_over_all_connections(harness: Harness) -> None:
    for connection in range(2):
        peer = harness.connect(access=user("ann"))
        for number in range(2):
            assert create(peer, f"{TEMPORARY_QUEUE}{connection}.{number}", True) == Status.OK
    last = harness.connect(access=user("ann"))
    assert create(last, f"{TEMPORARY_QUEUE}last", True) == Status.RESOURCE_FULL
    assert create(last, "q") == Status.RESOURCE_FULL
    last.send("q", "a", expect=Status.RESOURCE_FULL)
    properties = {**last.destination_properties("q"), "JMQSessionID": last.create_session()}
    assert last.request_status(PacketType.ADD_CONSUMER, properties) == Status.RESOURCE_FULL
    assert last.request_status(PacketType.ADD_PRODUCER, properties) == Status.RESOURCE_FULL
    assert create(harness.connect(access=user("bob")), "q") == Status.OK
    last.send("q", "a")


def test_superusers_have_no_quota(harness: Harness) -> None:
    peer = harness.connect(access=user("root", superuser=True))
    for number in range(5):
        assert create(peer, f"q{number}") == Status.OK


def test_quota_is_released_when_connection_closes(harness: Harness) -> None:
    for _ in range(5):
        peer = harness.connect(access=user("ann"))
        for number in range(2):
            assert create(peer, f"{TEMPORARY_QUEUE}{number}", True) == Status.OK
        peer.drop()
    assert not harness.broker.destinations.created
    assert not harness.broker.destinations.temporary


def subscribe(peer: Peer, name: str, topic: str) -> int:
    """Add a consumer with a durable subscription, and return the status of the reply."""
    properties = {
        **peer.destination_properties(topic, topic=True),
        "JMQSessionID": peer.create_session(),
        "JMQDurableName": name,
    }
    return status(peer.request(PacketType.ADD_CONSUMER, properties))


def test_number_of_durable_subscriptions_of_user_is_limited(harness: Harness) -> None:
    first = harness.connect(client_id="one", access=user("ann"))
    assert subscribe(first, "a", "t") == subscribe(first, "b", "t") == Status.OK
    second = harness.connect(client_id="two", access=user("ann"))
    assert subscribe(second, "c", "t") == Status.RESOURCE_FULL
    assert subscribe(harness.connect(client_id="3", access=user("bob")), "a", "t") == Status.OK
    first.drop()
    first = harness.connect(client_id="one", access=user("ann"))
    for topic in ("u", "t.*", "t.x", "u"):  # one subscription replaces the other
        first.send("t.x", "x", topic=True)
        assert subscribe(first, "a", topic) == Status.OK
        first.drop()
        first = harness.connect(client_id="one", access=user("ann"))
    root = harness.connect(client_id="4", access=user("root", superuser=True))
    assert [subscribe(root, name, "t") for name in "abc"] == [Status.OK] * 3
