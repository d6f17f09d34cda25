"""Queues created or configured by others, as VibeMQ clients see and change them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicemq.broker import Broker, Consumer, Delivery, EngineSettings, ManualClock, Window
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.clients.vibemq import commands
from sluicemq.clients.vibemq.commands import Conflict, Declaration
from sluicemq.journal import FileJournal
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Overflow,
    Provenance,
)
from sluicemq.protocols.jmq import destinations as jmq
from sluicemq.protocols.vibemq import queues, wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.queues import (
    NO_LIMIT,
    Mode,
    QueueCreation,
    WrittenOptions,
)
from sluicemq.protocols.vibemq.wire import Frame
from tests.protocols.vibemq.harness import Harness, Peer

QUEUE = Address(Kind.QUEUE, "q")
DEFAULTS = queues.QueueOptions().written


class ForeignConsumer:
    """A consumer of another protocol."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        pass

    def detached(self, consumer: Consumer) -> None:
        pass


def visible_options(peer: Peer, name: str = "q") -> WrittenOptions:
    """Return the options that QueueInfo shows, as a client reads them."""
    info = commands.read_info(peer.request(wire.QUEUE_INFO, name))
    assert info is not None
    return info.written


USERS: dict[str, Callable[[Broker], object]] = {
    "jmq": lambda broker: jmq.find_or_create(broker, QUEUE, None),
    "phpmq": lambda broker: broker.destinations.queue("q", by=CreatedBy.PHPMQ),
    "msglite": lambda broker: broker.destinations.queue("q", by=CreatedBy.MSGLITE),
    "vibemq": lambda broker: QueueCreation(broker, WrittenOptions()).find_or_create("q", None),
    "management": lambda broker: broker.destinations.queue("q", by=CreatedBy.MANAGEMENT),
}


# --- QueueInfo -------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
def test_queue_used_by_others_reports_default_options(harness: Harness, user: str) -> None:
    USERS[user](harness.broker)
    peer = harness.connect()
    options = visible_options(peer)
    assert options == DEFAULTS
    assert commands.conflicts(DEFAULTS, options) == []
    assert peer.info("q")["createdBy"] == user


def test_queue_info_reports_effective_settings_too(harness: Harness) -> None:
    jmq.find_or_create(harness.broker, QUEUE, None)
    info = harness.connect().info("q")
    assert {key: info[key] for key in info if key.startswith("effective")} == {
        "effectiveMode": 3,
        "effectiveMaxSize": NO_LIMIT,
        "effectiveDeadLetterQueueName": "mq.sys.dmq",
        "effectiveOverflowStrategy": 1,
        "effectiveMaxRetryAttempts": NO_LIMIT,
    }


def test_explicit_settings_are_reported_field_by_field(harness: Harness) -> None:
    settings = DestinationSettings(max_messages=77, max_bytes=10**6, priority_ordering=True)
    harness.broker.destinations.declare(
        QUEUE,
        settings,
        provenance=Provenance(CreatedBy.CONFIGURATION, frozenset({"max_messages", "max_bytes"})),
    )
    peer = harness.connect()
    assert visible_options(peer) == DEFAULTS._replace(max_queue_size=77)
    # priority_ordering is unchanged, but now it is explicit
    harness.broker.destinations.declare(
        QUEUE,
        settings,
        provenance=Provenance(
            CreatedBy.CONFIGURATION, frozenset({"priority_ordering", "max_attempts"})
        ),
    )
    assert visible_options(peer) == DEFAULTS._replace(mode=3, max_retry_attempts=NO_LIMIT)


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({"max_messages": 5}, "max_queue_size", 5),
        ({"message_ttl": 1500}, "ttl_ticks", 15_000_000),
        ({"dead_letter": True}, "dead_letter", True),
        ({"dead_letter_queue": "x"}, "dead_letter_queue", "x"),
        ({"overflow": Overflow.BLOCK}, "overflow", 2),
        ({"overflow": Overflow.DEAD_LETTER}, "overflow", 3),
        ({"max_attempts": 9}, "max_retry_attempts", 9),
        ({"priority_ordering": False}, "mode", 0),
        ({"max_bytes": 9}, "", None),
        ({"idle_timeout": 9}, "", None),
    ],
)
def test_changed_setting_is_reported_in_one_field(
    harness: Harness, changed: dict[str, Any], field: str, value: object
) -> None:
    harness.broker.destinations.queue("q", by=CreatedBy.PHPMQ)
    harness.broker.destinations.declare(QUEUE, DestinationSettings(**changed))
    expected = DEFAULTS._replace(**{field: value}) if field else DEFAULTS
    assert visible_options(harness.connect()) == expected


def test_topic_of_same_name_is_conflict(harness: Harness) -> None:
    harness.broker.destinations.topic("q", by=CreatedBy.JMQ)
    peer = harness.connect()
    assert visible_options(peer).mode == Mode.FAN_OUT_WITH_ACK
    assert commands.conflicts(DEFAULTS, visible_options(peer))


def test_dead_letter_queue_reports_default_options(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=3, enableDeadLetterQueue=True)
    peer.publish("q", "1", "2")
    assert visible_options(peer, "q.dlq") == DEFAULTS


def test_defaults_of_configuration_are_explicit() -> None:
    harness = Harness(EngineSettings(default_destination=DestinationSettings(max_messages=7)))
    harness.broker.destinations.queue("q", by=CreatedBy.PHPMQ)
    assert visible_options(harness.connect()) == DEFAULTS._replace(max_queue_size=7)


def test_later_change_replaces_declared_options(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=0, messageTtl="00:00:00", maxRetryAttempts=-1)
    destination = harness.destination("q")
    provenance = destination.provenance.changed(["max_messages"])
    harness.broker.destinations.declare(QUEUE, destination.settings, provenance=provenance)
    info = peer.info("q")
    # the same value as was enforced, but now it was set
    assert (info["maxSize"], info["messageTtl"], info["maxRetryAttempts"]) == (1, "00:00:00", -1)


# --- DeleteQueue -----------------------------------------------------------------------------


def declared(by: CreatedBy) -> Callable[[Broker], object]:
    return lambda broker: broker.destinations.declare(QUEUE, provenance=Provenance(by))


@pytest.mark.parametrize(
    ("create", "owner"),
    [
        (USERS["jmq"], "JMS"),
        (USERS["phpmq"], "PHPMQ"),
        (USERS["msglite"], "msglite"),
        (USERS["management"], "administrator"),
        (declared(CreatedBy.CONFIGURATION), "configuration"),
        (declared(CreatedBy.MANAGEMENT), "administrator"),
        (declared(CreatedBy.BROKER), "broker"),
        (lambda broker: broker.destinations.topic("q", by=CreatedBy.JMQ), "JMS"),
    ],
)
def test_queue_of_others_is_not_deleted(
    harness: Harness, create: Callable[[Broker], object], owner: str
) -> None:
    create(harness.broker)
    peer = harness.connect()
    peer.publish("q", "1")
    # use and declarations by VibeMQ clients do not change whose it is
    peer.subscribe("q")
    peer.create("q", maxQueueSize=5)
    response = peer.request(wire.DELETE_QUEUE, "q")
    assert (response.type, response.error_code) == (wire.ERROR, "FORBIDDEN")
    assert "queue q" in response.error_message
    assert owner in response.error_message
    assert harness.destination("q").consumers == 1
    allowing = harness.connect(SessionOptions(foreign_delete=True))
    assert allowing.request(wire.DELETE_QUEUE, "q").type == wire.DELETE_QUEUE
    assert allowing.info("q") is None


def test_configuration_takes_over_declared_queues(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q")
    declared(CreatedBy.CONFIGURATION)(harness.broker)
    assert peer.error(wire.DELETE_QUEUE, "q") == "FORBIDDEN"


def test_queue_with_consumers_of_others_is_not_deleted(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q")
    consumer = harness.broker.attach(
        harness.destination("q").queue, ForeignConsumer(), Window(1, True)
    )
    response = peer.request(wire.DELETE_QUEUE, "q")
    assert response.error_code == "FORBIDDEN"
    assert "consumers of other protocols" in response.error_message
    harness.broker.detach(consumer)
    peer.subscribe("q")
    assert peer.request(wire.DELETE_QUEUE, "q").type == wire.DELETE_QUEUE


def test_fan_out_queue_with_durable_subscription_is_not_deleted(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", mode=1)
    peer.subscribe("q")
    subscription = harness.broker.subscribe(harness.destination("q"), "jms", durable=True)
    assert peer.error(wire.DELETE_QUEUE, "q") == "FORBIDDEN"
    harness.broker.unsubscribe(subscription)
    assert peer.request(wire.DELETE_QUEUE, "q").type == wire.DELETE_QUEUE


@pytest.mark.parametrize("name", ["", "dead"])
def test_dead_letter_queue_of_existing_queue_is_not_deleted(harness: Harness, name: str) -> None:
    peer = harness.connect()
    dead_letters = name or "q.dlq"
    peer.create("q", enableDeadLetterQueue=True, deadLetterQueueName=name or None)
    peer.create("other", enableDeadLetterQueue=False, deadLetterQueueName="free")
    peer.create("free")
    peer.subscribe(dead_letters)
    response = peer.request(wire.DELETE_QUEUE, dead_letters)
    assert response.error_code == "FORBIDDEN"
    assert "dead-letter queue of q" in response.error_message
    assert peer.request(wire.DELETE_QUEUE, "free").type == wire.DELETE_QUEUE
    assert peer.request(wire.DELETE_QUEUE, "q").type == wire.DELETE_QUEUE
    assert peer.request(wire.DELETE_QUEUE, dead_letters).type == wire.DELETE_QUEUE


def test_dead_letters_of_others_are_not_deleted(harness: Harness) -> None:
    settings = DestinationSettings(dead_letter=True, max_messages=1, overflow=Overflow.DEAD_LETTER)
    harness.broker.destinations.declare(QUEUE, settings, provenance=Provenance(CreatedBy.PHPMQ))
    peer = harness.connect()
    peer.publish("q", "1", "2")
    harness.broker.remove(harness.destination("q"))
    response = peer.request(wire.DELETE_QUEUE, "q.dlq")
    assert "was created by PHPMQ" in response.error_message
    assert len(harness.bodies("q.dlq")) == 1


def test_declaration_of_fan_out_queue_does_not_change_topic_of_others(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.request(wire.UNSUBSCRIBE, "q")
    topic = jmq.find_or_create(harness.broker, Address(Kind.TOPIC, "q"), None)
    settings = topic.settings
    peer.create("q", mode=1, maxQueueSize=5)
    assert topic.settings == settings
    assert topic.provenance.created_by is CreatedBy.JMQ
    assert peer.info("q")["deliveryMode"] == 0


def test_override_does_not_change_queue_of_others(harness: Harness) -> None:
    """Recreate a queue like the .NET client: QueueInfo, DeleteQueue, CreateQueue."""
    harness.broker.destinations.queue("q", by=CreatedBy.PHPMQ)
    peer = harness.connect()
    peer.publish("q", "1")
    declaration = Declaration("q", queues.QueueOptions(message_ttl=1000), Conflict.OVERRIDE)
    info = commands.read_info(peer.request(wire.QUEUE_INFO, "q"))
    assert info is not None
    assert commands.must_replace(declaration, info)
    assert peer.error(wire.DELETE_QUEUE, "q") == "FORBIDDEN"
    assert harness.bodies("q") == [json.dumps("1").encode()]


# --- restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_restart_preserves_options_and_creators(tmp_path: Path, from_snapshot: bool) -> None:
    written_options = queues.read_written(
        b'{"mode":9,"maxQueueSize":-1,"messageTtl":"00:00:01.2345678",'
        b'"deadLetterQueueName":"a\\nb","overflowStrategy":7,"maxRetryAttempts":0}',
        {},
    )

    def opened() -> tuple[FileJournal, Harness]:
        journal = FileJournal.open(tmp_path)
        harness = Harness()
        harness.broker = Broker(journal, ManualClock())
        harness.broker.on_flush_needed(lambda: None)
        journal.set_snapshot_source(lambda: snapshot(harness.broker))
        recover(harness.broker, journal.recovery)
        return journal, harness

    journal, harness = opened()
    broker = harness.broker
    broker.destinations.declare(
        QUEUE,
        written_options.options().settings,
        provenance=written_options.provenance(created_ticks=4567),
        created=1_771_408_800_123,
    )
    jmq.find_or_create(broker, Address(Kind.QUEUE, "jms"), None)
    broker.destinations.queue("php", by=CreatedBy.PHPMQ)
    for name in ("jms", "php"):
        harness.connect().send(Frame(wire.PUBLISH, name, name, b"1"))
    before = [queues.info(harness.destination(name), False) for name in ("q", "jms", "php")]
    if from_snapshot:
        journal.seal()
    journal.sync()
    journal.close()

    journal, harness = opened()
    assert [queues.info(harness.destination(name), False) for name in ("q", "jms", "php")] == before
    assert json.loads(before[0])["createdAt"] == "2026-02-18T10:00:00.1234567Z"
    peer = harness.connect()
    assert peer.error(wire.DELETE_QUEUE, "php") == "FORBIDDEN"
    assert peer.error(wire.DELETE_QUEUE, "jms") == "FORBIDDEN"
    assert peer.request(wire.DELETE_QUEUE, "q").type == wire.DELETE_QUEUE
    journal.close()


def test_defaults_of_queue_created_by_use_follow_restarted_broker(tmp_path: Path) -> None:
    """Only the creator of a queue created by use is kept."""
    for limit, expected in ((5, 5), (6, 6)):
        journal = FileJournal.open(tmp_path)
        settings = EngineSettings(default_destination=DestinationSettings(max_messages=limit))
        harness = Harness()
        harness.broker = Broker(journal, ManualClock(), settings)
        harness.broker.on_flush_needed(lambda: None)
        recover(harness.broker, journal.recovery)
        destination = harness.broker.destinations.queue("q", by=CreatedBy.PHPMQ)
        assert destination.settings.max_messages == expected
        assert destination.provenance.created_by is CreatedBy.PHPMQ
        harness.connect().send(Frame(wire.PUBLISH, str(limit), "q", b"1"))
        journal.sync()
        journal.close()
