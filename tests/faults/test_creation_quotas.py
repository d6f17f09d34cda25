"""Users who create destinations up to their quota: each protocol rejects more with its own error,
and other users can still create destinations. In the long form the limits are the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.clients.vibemq.commands import CommandRefused
from sluicemq.model.access import Operation, Permission
from sluicemq.model.errors import ConnectionLost
from sluicemq.model.rows import row
from sluicemq.protocols.jmq.fields import TEMPORARY_QUEUE
from sluicemq.protocols.jmq.packets import DestType, PacketType, Status
from sluicemq.security import records
from sluicemq.security.passwords import hash_password
from sluicemq.security.records import UserRecord, UserStore
from tests.faults.plan import LONG, size
from tests.protocols.jmq.raw import RawJmq, status_of
from tests.support.http import Client, basic_auth

QUOTA: Final = size(50, 10_000)
"""broker.max_destinations_per_user"""
TEMPORARY_QUOTA: Final = size(20, 1000)
"""broker.max_temporary_destinations_per_connection"""
NAMES_PER_PART: Final = size(20, 1000)
"""http.max_batch_destinations"""
BATCH: Final = size(500, 100_000)
"""Queues that one batch tries to create."""
LARGEST_PART: Final = size(100, 32_768)
"""Rows."""
PASSWORD: Final = "correct horse battery"
ENVIRONMENT: Final = (
    {}
    if LONG
    else {
        "SLUICEMQ_BROKER__MAX_DESTINATIONS_PER_USER": str(QUOTA),
        "SLUICEMQ_BROKER__MAX_TEMPORARY_DESTINATIONS_PER_CONNECTION": str(TEMPORARY_QUOTA),
        "SLUICEMQ_HTTP__MAX_BATCH_DESTINATIONS": str(NAMES_PER_PART),
    }
)
LISTEN: Final = (
    "http://127.0.0.1:0",
    "vibemq://127.0.0.1:0",
    "jmq://127.0.0.1:0?services=jms&authentication=basic",
    "phpmq://127.0.0.1:0?user=greedy&durability=lazy",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    hashed = hash_password(PASSWORD)
    permissions = (Permission("*", frozenset(Operation)),)
    store = UserStore(tmp_path / "users.json")
    for name in ("greedy", "other"):
        record = UserRecord(password=hashed, permissions=permissions, created=1, updated=1)
        store.change(partial(records.add_user, name=name, user=record), "the tests")
    with LocalBroker(tmp_path, LISTEN, environment=ENVIRONMENT) as broker:
        yield broker
    assert "Traceback" not in broker.log.read_text()


def count_named(broker: LocalBroker, prefix: str) -> int:
    return sum(
        destination["name"].startswith(prefix) for destination in broker.status()["destinations"]
    )


def login_http(broker: LocalBroker, user: str) -> Client:
    return Client(broker.port("http"), Authorization=basic_auth(user, PASSWORD))


def login_vibemq(broker: LocalBroker, user: str) -> BlockingClient:
    return BlockingClient(
        VibeMQClient.connect,
        port=broker.port("vibemq"),
        username=user,
        password=PASSWORD,
        timeout=30,
    )


def check_other_user_can_create(broker: LocalBroker) -> None:
    """Create destinations as another user, over every protocol with logins."""
    with login_http(broker, "other") as http:
        assert http.write([row("other.http")], writer="other").status == 200
    with login_vibemq(broker, "other") as vibemq:
        vibemq.create_queue("other.vibemq")
    with RawJmq.login(broker.port("jmq"), "other", PASSWORD) as jmq:
        assert create_temporary(jmq, "other") == Status.OK
        assert status_of(jmq.produce("other.jmq")) == Status.OK
        assert count_named(broker, "other.") == 3


def create_temporary(client: RawJmq, name: str) -> int:
    """Create a temporary queue and return the status of the reply."""
    properties = {
        "JMQDestination": f"{TEMPORARY_QUEUE}{name}",
        "JMQDestType": DestType.QUEUE | DestType.TEMP,
    }
    reply = client.request(PacketType.CREATE_DESTINATION, properties)
    if status_of(reply) != Status.OK:
        assert "limit" in str(reply.properties["JMQReason"])
    return status_of(reply)


def test_batch_creates_no_more_queues_than_the_quota(broker: LocalBroker) -> None:
    """Parts with too many names are rejected completely; smaller ones succeed up to the quota."""
    rows = [row(f"batch.{number}", b"x") for number in range(BATCH)]
    with login_http(broker, "greedy") as client:
        for start in range(0, BATCH, LARGEST_PART):
            response = client.write(rows[start : start + LARGEST_PART], writer="large")
            assert (response.status, response.code) == (413, "too-large")
            client.connection.close()  # the broker may have closed it
        assert count_named(broker, "batch.") == 0
        responses = [
            client.write(
                rows[start : start + NAMES_PER_PART],
                part=start // NAMES_PER_PART,
                final="false",
            )
            for start in range(0, QUOTA // NAMES_PER_PART * NAMES_PER_PART, NAMES_PER_PART)
        ]
        assert {response.status for response in responses} == {200}
        created = count_named(broker, "batch.")
        assert created == len(responses) * NAMES_PER_PART <= QUOTA
        start = created
        for _ in range(5):
            response = client.write(
                rows[start : start + NAMES_PER_PART], part=len(responses), final="false"
            )
            assert (response.status, response.code) == (409, "rejected")
            assert "broker.max_destinations_per_user" in response.body.decode()
        assert count_named(broker, "batch.") <= QUOTA
    check_other_user_can_create(broker)


def test_user_has_no_more_temporary_queues_than_the_quota(broker: LocalBroker) -> None:
    """The quota applies to all connections of a user, each of which has its own limit."""
    created = 0
    with ExitStack() as stack:
        while created < QUOTA:
            client = stack.enter_context(RawJmq.login(broker.port("jmq"), "greedy", PASSWORD))
            count = min(TEMPORARY_QUOTA, QUOTA - created)
            for number in range(count):
                assert create_temporary(client, f"{created + number}") == Status.OK
            created += count
            assert create_temporary(client, "more") == Status.RESOURCE_FULL
        last = stack.enter_context(RawJmq.login(broker.port("jmq"), "greedy", PASSWORD))
        assert create_temporary(last, "last") == Status.RESOURCE_FULL
        assert status_of(last.produce("last")) == Status.RESOURCE_FULL
        assert count_named(broker, TEMPORARY_QUEUE) == QUOTA
        check_other_user_can_create(broker)
        assert create_temporary(client, "again") == Status.RESOURCE_FULL


def test_user_has_no_more_queues_than_the_quota(broker: LocalBroker) -> None:
    """PHPMQ, which creates half of the queues, has no errors: the broker closes the connection."""
    half_quota = QUOTA // 2
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as phpmq:
        for number in range(half_quota):
            phpmq.send(f"queue.{number}", b"x")
    with login_vibemq(broker, "greedy") as vibemq:
        vibemq.publish_all("queue.0", ["the PHPMQ client has been served"])
        assert count_named(broker, "queue.") == half_quota
        for number in range(half_quota, QUOTA):
            vibemq.post(f"queue.{number}", "x")
        vibemq.confirm()
        for attempt in range(5):
            with pytest.raises(CommandRefused, match=r"broker\.max_destinations_per_user"):
                vibemq.publish(f"queue.more.{attempt}", "x")
        with pytest.raises(CommandRefused, match=r"broker\.max_destinations_per_user"):
            vibemq.create_queue("queue.more")
        vibemq.publish("queue.0", "existing queues can be used")
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as phpmq:
        phpmq.send("queue.more", b"x")
        with pytest.raises(ConnectionLost):
            phpmq.receive(30)
    assert count_named(broker, "queue.") == QUOTA
    check_other_user_can_create(broker)
