"""CreateQueue, DeleteQueue, QueueInfo, ListQueues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.protocols.vibemq import queues, wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.queues import NO_LIMIT, Mode, Strategy
from sluicemq.protocols.vibemq.wire import Frame
from tests.protocols.vibemq.harness import Harness

EVERYTHING = {
    "mode": 3,
    "maxQueueSize": 77,
    "messageTtl": "1.02:03:04.5000000",
    "enableDeadLetterQueue": True,
    "deadLetterQueueName": "dead",
    "overflowStrategy": 2,
    "maxRetryAttempts": 9,
}


# --- options ---------------------------------------------------------------------------------


def options(payload: Any = None, **headers: str) -> queues.QueueOptions:
    raw = b"" if payload is None else json.dumps(payload).encode()
    return queues.read_written(raw, headers).options()


def test_reads_options_of_net_client() -> None:
    assert options(EVERYTHING) == queues.QueueOptions(
        Mode.PRIORITY_BASED,
        77,
        (((24 + 2) * 60 + 3) * 60 + 4) * 1000 + 500,
        True,
        "dead",
        Strategy.BLOCK_PUBLISHER,
        9,
    )


def test_reads_options_of_protocol_page() -> None:
    assert options(
        None,
        deliveryMode="FanOutWithAck",
        maxQueueSize="10",
        messageTtl="3600000",
        enableDeadLetterQueue="TRUE",
        maxRetryAttempts="5",
    ) == queues.QueueOptions(
        Mode.FAN_OUT_WITH_ACK, 10, 3_600_000, True, "", Strategy.DROP_OLDEST, 5
    )


def test_missing_options_have_defaults_of_original() -> None:
    defaults = queues.QueueOptions(
        Mode.ROUND_ROBIN, 10_000, 0, False, "", Strategy.DROP_OLDEST, max_retry_attempts=3
    )
    assert options() == options({}) == options({"unknown": [1]}) == defaults
    assert queues.read_written(b"null", {}).options() == defaults
    assert options({"messageTtl": None, "mode": None}) == defaults


def test_payload_options_override_headers() -> None:
    parsed = options({"mode": 3, "maxQueueSize": 5}, deliveryMode="FanOutWithAck", maxQueueSize="6")
    assert (parsed.mode, parsed.max_queue_size) == (Mode.PRIORITY_BASED, 5)
    assert options({"deliveryMode": "prioritybased"}, mode="1").mode is Mode.PRIORITY_BASED
    assert options({"maxQueueSize": 5}, maxRetryAttempts="7").max_retry_attempts == 7


@pytest.mark.parametrize(
    ("value", "mode"),
    [
        (0, Mode.ROUND_ROBIN),
        ("1", Mode.FAN_OUT_WITH_ACK),
        ("fanoutwithoutack", Mode.FAN_OUT_WITHOUT_ACK),
        ("PRIORITYBASED", Mode.PRIORITY_BASED),
        (" RoundRobin ", Mode.ROUND_ROBIN),
    ],
)
def test_modes_are_read_by_number_and_name(value: object, mode: Mode) -> None:
    assert options({"mode": value}).mode is mode


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("00:00:01", 1000),
        ("0:0:1", 1000),
        ("23:59:59.9999999", 24 * 3_600_000),
        ("10.00:00:00", 864_000_000),
        ("00:00:00.0000001", 1),
        ("00:00:00.25", 250),
        ("1500", 1500),
        (1500, 1500),
        (0, 0),
    ],
)
def test_time_to_live_is_read_as_time_span(value: object, milliseconds: int) -> None:
    assert options({"messageTtl": value}).message_ttl == milliseconds
    assert options(None, messageTtl=str(value)).message_ttl == milliseconds


@pytest.mark.parametrize("milliseconds", [1, 999, 1000, 86_400_000, 93_784_500, 10**14])
def test_time_span_round_trips(milliseconds: int) -> None:
    text = queues.format_span(milliseconds * queues.TICKS_PER_MS)
    assert options({"messageTtl": text}).message_ttl == milliseconds
    assert queues.format_span(93_784_500 * queues.TICKS_PER_MS) == "1.02:03:04.5000000"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", 2**31),
        ("mode", "Round"),
        ("mode", True),
        ("mode", 1.0),
        ("mode", []),
        ("maxQueueSize", 2**31),
        ("maxQueueSize", 1.5),
        ("maxQueueSize", "many"),
        ("maxQueueSize", True),
        ("maxQueueSize", "9" * 5000),
        ("messageTtl", "- 00:00:01"),
        ("messageTtl", "+00:00:01"),
        ("messageTtl", "00:00:00.00000001"),
        ("messageTtl", "10675199.02:48:05.4775808"),
        ("messageTtl", "-10675199.02:48:05.4775809"),
        ("messageTtl", "24:00:00"),
        ("messageTtl", "00:60:00"),
        ("messageTtl", "1:"),
        ("messageTtl", "1:2:3:4"),
        ("messageTtl", 1.5),
        ("messageTtl", 10**15),
        ("messageTtl", "99999999.00:00:00"),
        ("messageTtl", True),
        ("enableDeadLetterQueue", 1),
        ("enableDeadLetterQueue", "yes"),
        ("deadLetterQueueName", 5),
        ("deadLetterQueueName", "x" * 4097),
        ("overflowStrategy", 2**31),
        ("overflowStrategy", "Explode"),
        ("maxRetryAttempts", -(2**31) - 1),
    ],
)
def test_unreadable_options_are_refused_by_name(harness: Harness, name: str, value: object) -> None:
    peer = harness.connect()
    response = peer.request(wire.CREATE_QUEUE, "q", {name: value})
    assert response.error_code == "INVALID_MESSAGE"
    assert name in response.error_message
    assert not harness.broker.destinations


@pytest.mark.parametrize(
    "payload", [b"[]", b"1", b'"x"', b"{", b"[" * 100_000, b"\xff", b'{"\xff": 1}']
)
def test_options_that_are_not_object_are_refused(harness: Harness, payload: bytes) -> None:
    peer = harness.connect()
    [response] = peer.send(Frame(wire.CREATE_QUEUE, "c", "q", payload))
    assert response.error_code == "INVALID_MESSAGE"


def test_zero_means_unlimited() -> None:
    parsed = options({"maxQueueSize": NO_LIMIT, "maxRetryAttempts": NO_LIMIT})
    assert parsed.settings.max_messages == parsed.settings.max_attempts == 0
    assert options({"maxRetryAttempts": 0}).settings.max_attempts == 1


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("strategy", list(Strategy))
def test_destination_records_its_declared_options(
    harness: Harness, mode: Mode, strategy: Strategy
) -> None:
    written_options = queues.QueueOptions(mode, 5, 1000, True, "dead", strategy, 2)
    destination = harness.broker.destinations.declare(
        Address(written_options.kind, "q"), written_options.settings
    )
    assert queues.QueueOptions.of(destination.settings, topic=destination.topic) == written_options


# --- CreateQueue -----------------------------------------------------------------------------


def test_mode_determines_kind_of_destination(harness: Harness) -> None:
    peer = harness.connect()
    for mode, kind in enumerate((Kind.QUEUE, Kind.TOPIC, Kind.TOPIC, Kind.QUEUE)):
        peer.create(f"q{mode}", mode=mode)
        assert harness.broker.destinations.find(Address(kind, f"q{mode}")) is not None
    assert len(harness.broker.destinations) == 4


def test_create_of_existing_queue_succeeds_and_changes_nothing(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", **EVERYTHING)
    peer.publish("q", *map(str, range(3)))
    before = peer.info("q")
    for name, value in {
        "mode": 1,
        "maxQueueSize": 1,
        "messageTtl": "00:00:01",
        "enableDeadLetterQueue": False,
        "deadLetterQueueName": "other",
        "overflowStrategy": 0,
        "maxRetryAttempts": 8,
    }.items():
        peer.create("q", **EVERYTHING | {name: value})
        assert peer.info("q") == before
    peer.create("q")
    peer.publish("q", "3")
    assert len(harness.bodies("q")) == 4
    assert [address.name for address in harness.broker.destinations] == [
        "q",
        EVERYTHING["deadLetterQueueName"],
    ]


def test_create_of_existing_queue_fails_if_listener_is_strict(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(strict_create=True))
    peer.create("q")
    assert peer.error(wire.CREATE_QUEUE, "q") == "QUEUE_EXISTS"
    peer.publish("auto", "1")
    assert peer.error(wire.CREATE_QUEUE, "auto") == "QUEUE_EXISTS"


def test_queue_created_by_use_takes_first_declaration(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "1")
    assert harness.destination("q").automatic
    assert harness.destination("q").settings.max_messages == 10_000
    peer.create("q", maxQueueSize=5, mode=3)
    assert not harness.destination("q").automatic
    assert harness.destination("q").settings.max_messages == 5
    assert peer.info("q")["maxSize"] == 5
    peer.create("q", maxQueueSize=6)
    assert harness.destination("q").settings.max_messages == 5
    assert len(harness.bodies("q")) == 1


def test_declaration_that_would_drop_message_is_ignored(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "1", "2", "3")
    peer.create("q", maxQueueSize=2)
    peer.publish("q", "4")
    assert len(harness.bodies("q")) == 4
    assert peer.info("q")["maxSize"] == 10_000
    # with three waiting there is room for three, and nothing is dropped by refusing others
    peer.publish("other", "1", "2", "3")
    peer.create("other", maxQueueSize=2, overflowStrategy=1)
    assert peer.info("other")["maxSize"] == 2
    assert len(harness.bodies("other")) == 3
    peer.publish("full", "1", "2", "3")
    peer.create("full", maxQueueSize=3)
    assert peer.info("full")["maxSize"] == 3


@pytest.mark.parametrize("use", ["message", "unacknowledged", "consumer", "nothing"])
def test_kind_of_queue_changes_only_without_messages_and_consumers(
    harness: Harness, use: str
) -> None:
    peer, other = harness.connect(), harness.connect()
    other.subscribe("q")
    if use in ("message", "unacknowledged"):
        peer.publish("q", "1")
        other.frames()
    if use == "nothing":
        other.request(wire.UNSUBSCRIBE, "q")
    elif use == "message":
        other.request(wire.UNSUBSCRIBE, "q")
        assert harness.destination("q").waiting == 1
    created = peer.info("q")["createdAt"]
    harness.run_event_loop(5000)
    peer.create("q", mode=1)
    info = peer.info("q")
    assert info["deliveryMode"] == (1 if use == "nothing" else 0)
    assert info["createdAt"] == created
    assert len(harness.broker.destinations) == 1


def test_queue_whose_kind_cannot_change_because_of_limit_is_kept() -> None:
    harness = Harness(EngineSettings(max_destinations=1))
    peer = harness.connect()
    assert peer.subscribe("q") == []
    peer.request(wire.UNSUBSCRIBE, "q")
    options = {"mode": 1, "enableDeadLetterQueue": True}
    assert peer.error(wire.CREATE_QUEUE, "q", options) == "SERVER_ERROR"
    assert peer.info("q")["deliveryMode"] == 0
    peer.create("q", mode=1)
    assert peer.info("q")["deliveryMode"] == 1


def test_dead_letter_queue_ignores_declarations(harness: Harness) -> None:
    """Otherwise its limits would depend on its first user, and it could drop dead letters."""
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=3, enableDeadLetterQueue=True)
    peer.publish("q", "1", "2")
    peer.create("q.dlq", maxQueueSize=1)
    peer.publish("q", "3")
    assert len(harness.bodies("q.dlq")) == 2
    assert harness.destination("q.dlq").settings.max_messages == 0


def test_ignored_options_are_reported_to_operator(harness: Harness) -> None:
    notices: list[str] = []
    peer = harness.connect(SessionOptions(notify=notices.append))
    peer.create("q", maxQueueSize=5)
    peer.create("q", maxQueueSize=5)
    peer.create("q")
    assert notices == []
    peer.create("q", maxQueueSize=6, deadLetterQueueName="x" * 4000)
    [line] = notices
    assert "CreateQueue of q " in line
    assert "max_queue_size='6' instead of '5'" in line
    assert len(line) < 500


def test_declaration_does_not_change_configured_settings(harness: Harness) -> None:
    settings = DestinationSettings(
        max_messages=10_000,
        overflow=Overflow.DROP_OLDEST,
        max_attempts=3,
        priority_ordering=False,
        retry_delay=5,
        max_bytes=10**9,
    )
    harness.limit("q", settings)
    peer = harness.connect()
    peer.publish("q", "1")
    peer.create("q")
    assert harness.destination("q").settings == settings


def test_temporary_queue_of_others_can_be_neither_created_nor_deleted(harness: Harness) -> None:
    harness.broker.destinations.declare(Address(Kind.QUEUE, "mine"), owner=object())
    peer = harness.connect()
    assert peer.error(wire.CREATE_QUEUE, "mine") == "QUEUE_EXISTS"
    assert peer.request(wire.DELETE_QUEUE, "mine").type == wire.DELETE_QUEUE
    assert harness.find("mine") is not None
    assert json.loads(peer.request(wire.LIST_QUEUES).payload) == []
    peer.publish("mine", "but one may answer to it")


# --- DeleteQueue -----------------------------------------------------------------------------


def test_delete_queue_removes_queue(harness: Harness) -> None:
    peer = harness.connect()
    response = peer.request(wire.DELETE_QUEUE, "q")
    assert response == Frame(wire.DELETE_QUEUE, response.id, "q")
    for mode in range(4):
        peer.create("q", mode=mode)
        peer.publish("q", "1")
        answer = peer.request(wire.DELETE_QUEUE, "q")
        assert answer == Frame(wire.DELETE_QUEUE, answer.id, "q")
        assert peer.info("q") is None
    assert peer.subscribe("q") == []


# --- QueueInfo -------------------------------------------------------------------------------


def test_info_has_types_that_net_client_reads(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", **EVERYTHING)
    peer.publish("q", "1", "2")
    peer.subscribe("q")
    peer.publish("q", "3")
    peer.request(wire.UNSUBSCRIBE, "q")
    assert peer.info("q") == {
        "name": "q",
        "messageCount": 3,
        "subscriberCount": 0,
        "deliveryMode": 3,
        "maxSize": 77,
        "createdAt": "2023-11-14T22:13:20.000Z",
        "messageTtl": "1.02:03:04.5000000",
        "enableDeadLetterQueue": True,
        "deadLetterQueueName": "dead",
        "overflowStrategy": 2,
        "maxRetryAttempts": 9,
        "unackedCount": 0,
        "createdBy": "vibemq",
        "effectiveMode": 3,
        "effectiveMaxSize": 77,
        "effectiveMessageTtl": "1.02:03:04.5000000",
        "effectiveDeadLetterQueueName": "dead",
        "effectiveOverflowStrategy": 2,
        "effectiveMaxRetryAttempts": 9,
    }


def test_info_counts_waiting_messages_and_subscribers(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "1", "2")
    peer.subscribe("q")
    info = peer.info("q")
    assert (info["messageCount"], info["unackedCount"], info["subscriberCount"]) == (0, 2, 1)
    assert info.keys().isdisjoint({"messageTtl", "deadLetterQueueName"})


def test_mode_by_name_for_clients_that_send_their_version(harness: Harness) -> None:
    peer = harness.connect(clientVersion="1.0.0")
    names = ["RoundRobin", "FanOutWithAck", "FanOutWithoutAck", "PriorityBased"]
    for mode, name in enumerate(names):
        peer.create(f"q{mode}", mode=mode)
        assert peer.info(f"q{mode}")["deliveryMode"] == name


def test_info_on_missing_queue_is_empty_for_net_client(harness: Harness) -> None:
    response = harness.connect().request(wire.QUEUE_INFO, "q")
    assert response.type == wire.QUEUE_INFO
    assert response.payload == b""
    assert response.error_code == "QUEUE_NOT_FOUND"
    assert response.error_message


def test_created_at_is_time_of_creation(harness: Harness) -> None:
    peer = harness.connect()
    harness.run_event_loop(61_500)
    peer.create("q")
    harness.run_event_loop(1000)
    assert peer.info("q")["createdAt"] == "2023-11-14T22:14:21.500Z"


# --- ListQueues ------------------------------------------------------------------------------


def test_list_is_in_creation_order_and_omits_names_that_are_invalid(harness: Harness) -> None:
    peer = harness.connect()
    assert json.loads(peer.request(wire.LIST_QUEUES).payload) == []
    peer.create("z")
    harness.run_event_loop(10)
    peer.create("a", mode=1)
    harness.limit("no name/here", DestinationSettings())
    harness.limit("\udcff", DestinationSettings())
    harness.broker.destinations.declare(Address(Kind.TOPIC, "z"))
    harness.run_event_loop(10)
    peer.publish("Über", "1")
    assert json.loads(peer.request(wire.LIST_QUEUES).payload) == ["z", "a", "Über"]


def test_list_that_is_too_long_for_frame_is_error(harness: Harness) -> None:
    for n in range(4500):
        harness.limit(f"{n:0256}", DestinationSettings())
    assert harness.connect().error(wire.LIST_QUEUES) == "SERVER_ERROR"
