"""Queues that VibeMQ clients create: their settings, and their dead-letter queues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.access import Identity, Operation, Permission
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.queues import NO_LIMIT, Mode, Strategy, WrittenOptions
from sluicemq.protocols.vibemq.wire import Frame
from sluicemq.security.access import Access
from tests.protocols.vibemq.harness import Harness, Peer

LISTENER = SessionOptions(
    defaults=WrittenOptions(
        Mode.PRIORITY_BASED, 7, overflow=Strategy.DROP_NEWEST, max_retry_attempts=5
    ),
)
VIBEMQ = DestinationSettings(
    max_messages=10_000,
    overflow=Overflow.DROP_OLDEST,
    max_attempts=3,
    priority_ordering=False,
    idle_timeout=0,
)
"""The settings of a queue created by use without options."""


def settings_by_use(
    defaults: dict[str, Any],
    options: SessionOptions | None = None,
    fields: frozenset[str] = frozenset(),
) -> DestinationSettings:
    broker = EngineSettings(
        default_destination=DestinationSettings(**defaults), default_fields=fields
    )
    harness = Harness(broker)
    harness.connect(options).publish("q", "1")
    return harness.destination("q").settings


def changed(**values: Any) -> DestinationSettings:
    fields = {name: getattr(VIBEMQ, name) for name in VIBEMQ.__struct_fields__}
    return DestinationSettings(**{**fields, **values})


# --- defaults ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_bytes": 1 << 30},
        {"max_messages": 9},
        {"overflow": Overflow.BLOCK},
        {"overflow": Overflow.DROP_LOWEST},
        {"max_attempts": 8},
        {"message_ttl": 60_000},
        {"retry_delay": 10, "retry_delay_max": 20},
        {"ack_timeout": 5_000, "max_consumers": 2},
        {"idle_timeout": 60_000},
    ],
)
def test_defaults_of_broker_replace_vibemq_defaults_field_by_field(
    given: dict[str, Any],
) -> None:
    assert settings_by_use(given) == changed(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_messages", 0), ("max_attempts", 0), ("priority_ordering", True), ("retry_delay", 0)],
)
def test_explicit_default_value_of_broker_applies(name: str, value: object) -> None:
    assert settings_by_use({}, None, frozenset([name])) == changed(**{name: value})


def test_listener_defaults_override_broker() -> None:
    settings = {
        "max_messages": 9,
        "max_bytes": 100,
        "overflow": Overflow.DROP_LOWEST,
        "max_attempts": 8,
    }
    assert settings_by_use(settings, LISTENER) == changed(
        max_messages=7,
        max_bytes=100,
        overflow=Overflow.REJECT,
        max_attempts=5,
        priority_ordering=True,
    )
    explicit = SessionOptions(defaults=WrittenOptions(overflow=Strategy.DROP_OLDEST))
    assert settings_by_use(settings, explicit).overflow is Overflow.DROP_OLDEST


def test_create_queue_options_override_all_defaults() -> None:
    defaults = DestinationSettings(max_messages=9, max_bytes=100, max_attempts=8, dead_letter=True)
    harness = Harness(EngineSettings(default_destination=defaults))
    peer = harness.connect(LISTENER)
    peer.create("none")
    info = peer.info("none")
    assert (info["deliveryMode"], info["maxSize"], info["overflowStrategy"]) == (3, 7, 1)
    assert (info["maxRetryAttempts"], info["enableDeadLetterQueue"]) == (5, True)
    assert harness.destination("none").settings.max_bytes == 100
    assert harness.destination("none").settings.idle_timeout is None
    peer.create("some", mode=0, maxQueueSize=1, enableDeadLetterQueue=False)
    info = peer.info("some")
    assert (info["deliveryMode"], info["maxSize"], info["overflowStrategy"]) == (0, 1, 1)
    assert (info["maxRetryAttempts"], info["enableDeadLetterQueue"]) == (5, False)


def test_info_of_queue_created_by_use_has_listener_defaults() -> None:
    harness = Harness()
    peer = harness.connect(LISTENER)
    peer.subscribe("q")
    info = peer.info("q")
    assert (info["deliveryMode"], info["maxSize"], info["overflowStrategy"]) == (3, 7, 1)
    assert info["maxRetryAttempts"] == 5


def test_queue_created_by_use_may_be_fan_out() -> None:
    harness = Harness()
    mode = Mode.FAN_OUT_WITH_ACK
    options = SessionOptions(defaults=WrittenOptions(mode, max_queue_size=NO_LIMIT))
    peer, other = harness.connect(options), harness.connect(options)
    peer.subscribe("q")
    other.subscribe("q")
    destination = harness.destination("q")
    assert (destination.address.kind, destination.settings.max_messages) == (Kind.TOPIC, 0)
    harness.connect(options).publish("q", "1")
    assert (peer.ids(), other.ids()) == (["1"], ["1"])


def test_queue_created_by_use_is_not_deleted_when_idle(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.request(wire.UNSUBSCRIBE, "q")
    harness.clock.advance(10**9)
    harness.broker.delete_if_idle(harness.destination("q"))
    assert peer.info("q") is not None


# --- dead-letter queues --------------------------------------------------------------------------


def listed(peer: Peer) -> list[str]:
    names: list[str] = json.loads(peer.request(wire.LIST_QUEUES).payload)
    return names


@pytest.mark.parametrize("name", [None, "graves"])
def test_dead_letter_queue_is_created_with_its_queue(harness: Harness, name: str | None) -> None:
    peer = harness.connect()
    dead_letter_queue = name or "q.dlq"
    assert peer.info(dead_letter_queue) is None
    peer.create("q", enableDeadLetterQueue=True, deadLetterQueueName=name)
    assert listed(peer) == ["q", dead_letter_queue]
    info = peer.info(dead_letter_queue)
    assert (info["maxSize"], info["maxRetryAttempts"]) == (10_000, 3)
    effective = (info["effectiveMaxSize"], info["effectiveMaxRetryAttempts"])
    assert effective == (NO_LIMIT, NO_LIMIT)
    assert harness.destination(dead_letter_queue).settings == DestinationSettings()
    assert peer.subscribe(dead_letter_queue) == []


@pytest.mark.parametrize("command", ["info", "declare", "subscribe", "publish", "list"])
def test_dead_letter_queue_of_configured_queue_exists(harness: Harness, command: str) -> None:
    harness.limit("q", DestinationSettings(dead_letter=True, max_attempts=1))
    peer = harness.connect()
    if command == "info":
        assert peer.info("q.dlq")["effectiveMaxSize"] == NO_LIMIT
    elif command == "declare":
        peer.create("q.dlq", maxQueueSize=1)
    elif command == "subscribe":
        peer.subscribe("q.dlq")
    elif command == "publish":
        peer.publish("q.dlq", "x")
    else:
        assert listed(peer) == ["q", "q.dlq"]
    assert harness.destination("q.dlq").settings == DestinationSettings()


def test_dead_letter_queue_settings_do_not_depend_on_its_first_user(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q.dlq", "early")
    peer.create("q", enableDeadLetterQueue=True, maxRetryAttempts=1)
    assert harness.destination("q.dlq").settings == DestinationSettings()
    peer.create("q.dlq", maxQueueSize=1)
    peer.publish("q.dlq", "second")
    assert harness.destination("q.dlq").settings == DestinationSettings()
    assert peer.info("q.dlq")["messageCount"] == 2


def test_application_options_do_not_drop_dead_letters(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q.dlq", maxQueueSize=1, maxRetryAttempts=3)
    options = {"maxQueueSize": 1, "overflowStrategy": 3}
    peer.create("q", enableDeadLetterQueue=True, **options)
    peer.publish("q", "1", "2")
    assert peer.error(wire.PUBLISH, "q", "3") == "QUEUE_FULL"
    assert peer.error(wire.PUBLISH, "q.dlq", "4") == "QUEUE_FULL"
    assert harness.bodies("q.dlq") == [b'"2"']


def test_limit_of_dlq_keeps_exhausted_messages_in_their_queue(harness: Harness) -> None:
    harness.limit("q.dlq", DestinationSettings(max_messages=1))
    peer = harness.connect()
    peer.create("q", enableDeadLetterQueue=True, maxRetryAttempts=1)
    peer.publish("q", "1", "2")
    peer.subscribe("q")
    harness.run_event_loop(31_000)
    harness.run_event_loop(31_000)
    assert peer.info("q")["messageCount"] == 1
    assert peer.info("q.dlq")["messageCount"] == 1
    harness.limit("q.dlq", DestinationSettings())
    harness.run_event_loop(6_000)
    assert peer.info("q")["messageCount"] == 0
    assert harness.bodies("q.dlq") == [b'"1"', b'"2"']


def test_both_queues_count_against_quota() -> None:
    operations = frozenset(Operation)
    ann = Identity("ann", (Permission("*", operations),))
    harness = Harness(EngineSettings(max_destinations_per_user=3), Access(ann))
    peer = harness.connect()
    peer.create("a", enableDeadLetterQueue=True)
    assert harness.broker.destinations.created["ann"] == 2
    assert peer.error(wire.CREATE_QUEUE, "b", {"enableDeadLetterQueue": True}) == "SERVER_ERROR"
    assert harness.broker.destinations.find(Address(Kind.QUEUE, "b")) is None
    peer.create("b")
    assert peer.error(wire.CREATE_QUEUE, "c") == "SERVER_ERROR"


def test_dead_letter_queue_is_hidden_without_permission() -> None:
    ann = Identity("ann", (Permission("q", frozenset(Operation)),))
    harness = Harness(access=Access(ann))
    peer = harness.connect()
    peer.create("q", enableDeadLetterQueue=True)
    assert listed(peer) == ["q"]
    for kind in (wire.QUEUE_INFO, wire.SUBSCRIBE, wire.CREATE_QUEUE, wire.DELETE_QUEUE):
        assert peer.error(kind, "q.dlq") == "NOT_AUTHORIZED"


# --- waiting for capacity ------------------------------------------------------------------------


def test_block_timeout_limits_how_long_publish_waits_for_capacity(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(block_timeout=2_500))
    peer.create("q", maxQueueSize=1, overflowStrategy=2)
    peer.publish("q", "1")
    assert peer.send(Frame(wire.PUBLISH, "2", "q", b"2")) == []
    harness.run_event_loop(2_499)
    assert peer.frames() == []
    harness.run_event_loop(1)
    [response] = peer.frames()
    assert (response.id, response.error_code) == ("2", "QUEUE_FULL")
    assert "2.5 s" in response.error_message


def test_block_timeout_of_0_does_not_wait(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(block_timeout=0))
    peer.create("q", maxQueueSize=1, overflowStrategy=2)
    peer.publish("q", "1")
    assert peer.error(wire.PUBLISH, "q", "2") == "QUEUE_FULL"
