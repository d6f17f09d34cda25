"""Quotas on the destinations that one user may create."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.access import EVERYBODY, Identity
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import BatchRefused, LimitExceeded, QuotaExceeded
from sluicemq.model.message import Durability, Message
from tests.broker.disk_broker import DiskBroker
from tests.broker.test_batches import FIRST_PART
from tests.support.broker import BrokerFixture


def queue(name: str) -> Address:
    return Address(Kind.QUEUE, name)


@pytest.fixture
def fixture() -> BrokerFixture:
    return BrokerFixture(EngineSettings(max_destinations_per_user=2, max_destinations=6))


def test_superusers_have_no_quota_and_anonymous_users_share_one() -> None:
    assert Identity("root", superuser=True).creator is None
    assert Identity("ann").creator == "ann"
    assert EVERYBODY.creator == ""


def test_user_at_quota_cannot_create_but_others_can(fixture: BrokerFixture) -> None:
    broker = fixture.broker
    broker.destinations.resolve(queue("a"), creator="ann")
    broker.destinations.declare(queue("b"), creator="ann")
    with pytest.raises(QuotaExceeded, match="user ann created 2"):
        broker.destinations.resolve(queue("c"), creator="ann")
    with pytest.raises(QuotaExceeded, match="max_destinations_per_user"):
        broker.destinations.declare(queue("c"), creator="ann")
    with pytest.raises(QuotaExceeded):
        broker.destinations.declare(queue("c"), owner=object(), creator="ann")
    assert broker.destinations.resolve(queue("a"), creator="ann").creator == "ann"  # it exists
    broker.destinations.resolve(queue("c"), creator="bob")
    broker.destinations.resolve(queue("d"), creator="")
    broker.destinations.resolve(queue("e"))
    broker.destinations.resolve(queue("f"))
    with pytest.raises(LimitExceeded, match="there are 6"):
        broker.destinations.resolve(queue("g"))


def test_removed_destination_releases_quota(fixture: BrokerFixture) -> None:
    broker = fixture.broker
    owner = object()
    broker.destinations.resolve(queue("a"), creator="ann")
    broker.destinations.declare(queue("b"), owner=owner, creator="ann")
    broker.delete_temporary(owner)
    broker.remove(broker.destinations[queue("a")])
    assert (dict(broker.destinations.created), dict(broker.destinations.temporary)) == ({}, {})
    broker.destinations.resolve(queue("c"), creator="ann")
    broker.destinations.resolve(queue("d"), creator="ann")
    assert broker.destinations.created["ann"] == 2


def test_automatic_destination_counts_for_its_declaring_user(fixture: BrokerFixture) -> None:
    broker = fixture.broker
    broker.destinations.resolve(queue("a"), creator="ann")
    broker.destinations.declare(queue("a"), creator=None)
    assert dict(broker.destinations.created) == {}
    broker.destinations.declare(queue("a"), DestinationSettings(max_messages=3), creator="bob")
    assert broker.destinations[queue("a")].creator is None
    for name in "bc":
        broker.destinations.resolve(queue(name), creator="ann")
    broker.destinations.resolve(queue("d"), creator="bob")
    with pytest.raises(QuotaExceeded):
        broker.destinations.declare(queue("d"), creator="ann")


def test_temporary_destinations_of_connection_are_limited() -> None:
    broker = BrokerFixture(EngineSettings(max_temporary_destinations_per_connection=1)).broker
    connection, other_connection = object(), object()
    broker.destinations.check_temporary(connection)
    broker.destinations.declare(queue("a"), owner=connection, creator="ann")
    with pytest.raises(QuotaExceeded, match="max_temporary_destinations_per_connection"):
        broker.destinations.check_temporary(connection)
    broker.destinations.check_temporary(other_connection)
    broker.delete_temporary(connection)
    broker.destinations.check_temporary(connection)


def test_message_to_removed_queue_recreates_it_for_its_creator(fixture: BrokerFixture) -> None:
    broker = fixture.broker
    destination = broker.destinations.resolve(queue("a"), creator="ann")
    transaction = broker.transactions.begin()
    broker.transactions.publish(transaction, destination, fixture.message(destination, "x"))
    broker.remove(destination)
    broker.transactions.commit(transaction)
    assert broker.destinations.created["ann"] == 1
    removed_queue = broker.destinations[queue("a")]
    broker.remove(removed_queue)
    broker.publish(removed_queue, fixture.message(removed_queue, "y"))
    assert broker.destinations.created["ann"] == 1


def test_batch_beyond_quota_is_refused_permanently(fixture: BrokerFixture) -> None:
    messages = [(queue(name), Message(queue(name), b"", timestamp=1)) for name in "abc"]
    with pytest.raises(BatchRefused) as error:
        fixture.broker.batches.write(FIRST_PART, messages, "ann")
    [refusal] = error.value.refused
    assert (refusal.row, refusal.is_temporary) == (2, False)


@pytest.mark.parametrize("snapshot", [False, True])
def test_quota_survives_restart(disk: DiskBroker, snapshot: bool) -> None:
    queue_of_ann = disk.broker.destinations.resolve(queue("used"), creator="ann")
    disk.broker.destinations.resolve(queue("empty"), creator="ann")
    disk.broker.destinations.declare(queue("declared"), creator="ann")
    disk.broker.destinations.declare(queue("unowned"))
    topic = disk.broker.destinations.topic("subscribed", "bob")
    disk.broker.subscribe(topic, "s", durable=True)
    disk.broker.publish(
        queue_of_ann, Message(queue_of_ann.address, b"x", durability=Durability.SYNC)
    )
    disk.broker.destinations.assign_number(disk.broker.destinations[queue("empty")])
    disk.sync()
    if snapshot:
        disk.seal()
    disk.crash()
    creators = {d.name: d.creator for d in disk.broker.destinations.values()}
    assert creators == {"used": "ann", "declared": "ann", "unowned": None, "subscribed": "bob"}
    assert disk.broker.destinations.created == {"ann": 2, "bob": 1}
    assert disk.broker.destinations[queue("used")].automatic


def test_destination_with_prepared_messages_only_is_recovered(disk: DiskBroker) -> None:
    """After a restart it exists only because a prepared transaction sends to it."""
    address = queue("prepared")
    settings = DestinationSettings(max_attempts=3)
    destination = disk.broker.destinations.resolve(address, settings, creator="ann")
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    transactions.publish(transaction, destination, Message(address, b"x"))
    transactions.prepare(transaction, b"xid")
    disk.sync()
    disk.crash()
    assert disk.broker.destinations[address].settings == settings
    assert disk.broker.destinations.created == {"ann": 1}


@pytest.mark.parametrize("snapshot", [False, True])
def test_durable_subscriptions_of_user_are_limited(disk: DiskBroker, snapshot: bool) -> None:
    disk.broker.core.settings = settings = EngineSettings(max_subscriptions_per_user=2)
    topics = [disk.broker.destinations.topic(name) for name in "ab"]
    for name in ("one", "two"):
        disk.broker.subscribe(topics[0], name, durable=True, owner="ann", creator="ann")
    # the same name of another topic, as a wildcard has it
    disk.broker.subscribe(topics[1], "two", durable=True, owner="ann", creator="ann")
    disk.sync()
    if snapshot:
        disk.seal()
    disk.crash()
    disk.broker.core.settings = settings
    topic = disk.broker.destinations.topic("a")
    with pytest.raises(QuotaExceeded, match="user ann has 2 durable"):
        disk.broker.subscribe(topic, "three", durable=True, owner="ann", creator="ann")
    disk.broker.subscribe(topic, "three", owner="ann", creator="ann")
    disk.broker.subscribe(topic, "root", durable=True, owner="root")
    disk.broker.subscribe(topic, "four", durable=True, owner="bob", creator="bob")
    disk.broker.unsubscribe(topic.subscriptions["one"])
    disk.broker.subscribe(topic, "five", durable=True, owner="ann", creator="ann")


def test_subscription_is_replaced_at_lowered_limit_or_kept() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(max_subscriptions=3)

    def subscribe(name: str, **terms: bool) -> None:
        fixture.broker.subscribe(topic, name, durable=True, owner="ann", creator="ann", **terms)

    for name in "abc":
        subscribe(name)
    topic.apply(DestinationSettings(max_subscriptions=2))
    fixture.broker.core.settings = EngineSettings(max_subscriptions_per_user=2)
    subscribe("a", shared=True)
    assert topic.subscriptions["a"].shared
    fixture.broker.subscribe(topic, "b", owner="ann", creator="ann")
    fixture.broker.core.settings = EngineSettings(max_subscriptions_per_user=1)
    before = topic.subscriptions["b"]
    with pytest.raises(QuotaExceeded):
        subscribe("b")
    assert topic.subscriptions["b"] is before
