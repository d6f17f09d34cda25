"""Channels, which the sessions of all protocols share."""

from __future__ import annotations

from sluicemq.broker import Delivery, Destination, EngineSettings
from sluicemq.model.access import EVERYBODY
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import BrokerError, DestinationNotFound, LimitExceeded
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.channel import (
    MAX_TARGETS,
    MAX_UNCONFIRMED,
    MAX_UNREAD,
    Channel,
    Publisher,
    Unacked,
    cache_target,
)
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.transport import Transport
from sluicemq.security.access import OPEN
from tests.support.offload import idle_offload
from tests.support.sessions import RecordedTransport, SessionHarness


class Harness(SessionHarness):
    def open(self, transport: Transport) -> PhpmqSession:
        return PhpmqSession(transport, self.broker, idle_offload())


class Session:
    """A session whose confirmations are the request numbers."""

    def __init__(self) -> None:
        self.finished: list[tuple[int, BrokerError | None]] = []

    def encode_confirms(self, batch: list[int]) -> list[bytes]:
        return [b"%d;" % request for request in batch]

    def may_park(self, destination: Destination) -> bool:
        return True

    def finish_parked(self, request: int, error: BrokerError | None) -> None:
        self.finished.append((request, error))


class ChannelFixture:
    def __init__(self, max_wait: int = 0, settings: EngineSettings | None = None) -> None:
        self.harness = Harness(settings)
        self.transport = RecordedTransport(self.harness)
        self.transport.session = self.harness.open(self.transport)
        self.harness.transports.append(self.transport)
        broker = self.harness.broker
        self.channel: Channel[bytes] = Channel(self.transport, broker, OPEN, "test", EVERYBODY)
        self.session = Session()
        self.publisher: Publisher[int] = Publisher(
            self.channel, self.session.finish_parked, self.session, max_wait
        )
        address = Address(Kind.QUEUE, "q")
        settings = DestinationSettings(max_messages=1, overflow=Overflow.BLOCK)
        self.full = broker.destinations.declare(address, settings)
        self.free = broker.destinations.declare(Address(Kind.QUEUE, "free"))

    def publish(self, request: int, destination: Destination) -> bool:
        message = Message(destination.address, b"body", durability=Durability.SYNC)
        accepted = self.publisher.publish(destination, message, request)
        if accepted:
            self.publisher.accepted.append(request)
        return accepted


def test_messages_of_read_are_confirmed_together_once_durable() -> None:
    fixture = ChannelFixture()
    assert fixture.publish(1, fixture.free)
    assert fixture.publish(2, fixture.free)
    fixture.publisher.confirm()
    fixture.publisher.count_received(1 << 20)
    assert fixture.channel.unconfirmed == 1 << 20
    assert fixture.transport.written == b""
    fixture.harness.run_event_loop()
    assert fixture.transport.written == b"1;2;"
    assert fixture.channel.unconfirmed == 0


def test_error_in_confirmation_ends_only_its_connection() -> None:
    fixture = ChannelFixture()
    faults = fixture.transport.catch_faults()
    fixture.session.encode_confirms = lambda batch: [b"%d" % number for number in ["a"]]  # type: ignore[method-assign,str-format]
    fixture.publish(1, fixture.free)
    fixture.publisher.confirm()
    fixture.harness.run_event_loop()
    assert [type(fault) for fault in faults] == [TypeError]


def test_error_after_wait_for_capacity_ends_only_its_connection() -> None:
    fixture = ChannelFixture()
    faults = fixture.transport.catch_faults()
    fixture.session.finished = None  # type: ignore[assignment]
    fixture.publish(1, fixture.full)
    fixture.publish(2, fixture.full)
    fixture.harness.broker.operations.purge(fixture.full, True, lambda count: None)
    fixture.harness.run_event_loop()
    fixture.harness.broker.operations.purge(fixture.full, True, lambda count: None)
    fixture.harness.run_event_loop()
    assert [type(fault) for fault in faults] == [AttributeError]


def test_parked_message_is_accepted_when_there_is_capacity() -> None:
    fixture = ChannelFixture()
    fixture.publish(1, fixture.full)
    assert not fixture.publish(2, fixture.full)
    assert fixture.publisher.parked == 1
    assert fixture.publisher.parked_bytes == len(b"body")
    fixture.harness.run_event_loop()
    fixture.harness.broker.operations.purge(fixture.full, True, lambda count: None)
    fixture.harness.run_event_loop()
    assert fixture.session.finished == [(2, None)]
    assert fixture.publisher.parked == fixture.publisher.parked_bytes == 0


def test_parked_message_is_refused_after_its_timeout() -> None:
    fixture = ChannelFixture(max_wait=500)
    fixture.publish(1, fixture.full)
    fixture.publish(2, fixture.full)
    fixture.harness.run_event_loop(499)
    assert not fixture.session.finished
    fixture.harness.run_event_loop(1)
    [(request, error)] = fixture.session.finished
    assert request == 2
    assert isinstance(error, LimitExceeded)
    assert not fixture.full.parked


def test_parked_message_is_refused_when_its_destination_cannot_be_recreated() -> None:
    fixture = ChannelFixture(settings=EngineSettings(auto_create_queues=False))
    fixture.publish(1, fixture.full)
    fixture.publish(2, fixture.full)
    fixture.harness.broker.remove(fixture.full, force=True)
    fixture.harness.run_event_loop()
    [(request, error)] = fixture.session.finished
    assert request == 2
    assert isinstance(error, DestinationNotFound)


def test_message_parked_again_after_deletion_keeps_its_timeout() -> None:
    defaults = DestinationSettings(max_messages=1, overflow=Overflow.BLOCK)
    fixture = ChannelFixture(max_wait=500, settings=EngineSettings(default_destination=defaults))
    for request in (1, 2, 3):
        fixture.publish(request, fixture.full)
    broker = fixture.harness.broker
    broker.remove(fixture.full, force=True)
    fixture.harness.run_event_loop()
    [(request, error)] = fixture.session.finished
    assert (request, error) == (2, None)
    fixture.harness.run_event_loop(500)
    [_, (request, error)] = fixture.session.finished
    assert request == 3
    assert isinstance(error, LimitExceeded)
    broker.operations.purge(broker.destinations.queue("q"), True, lambda count: None)
    fixture.harness.run_event_loop()
    assert fixture.harness.bodies("q") == []


def test_end_withdraws_parked_messages_except_kept_ones() -> None:
    fixture = ChannelFixture()
    for request in (1, 2, 3):
        fixture.publish(request, fixture.full)
    fixture.publisher.end(lambda request: request == 3)
    assert fixture.publisher.parked == 1
    assert len(fixture.full.parked) == 1


def test_reading_pauses_while_data_is_unconfirmed_unread_or_frames_are_pending() -> None:
    channel = ChannelFixture().channel
    transport = channel.transport
    assert isinstance(transport, RecordedTransport)
    channel.unconfirmed = MAX_UNCONFIRMED + 1
    channel.update_reading()
    assert transport.paused
    channel.unconfirmed = 0
    channel.update_reading()
    assert not transport.paused
    channel.mark_congested()
    channel.write([bytes(MAX_UNREAD + 1)])
    assert transport.paused
    channel.clear_congestion()
    channel.update_reading()
    assert not transport.paused
    channel.hold([b"frame"], 5)
    channel.hold([b"next"], 4)
    channel.update_reading()
    assert transport.paused
    assert channel.held_bytes == 9
    assert channel.release() == ([b"frame", b"next"], 9)
    assert channel.held_bytes == 0


def test_closed_channel_sends_nothing() -> None:
    fixture = ChannelFixture()
    assert fixture.channel.close()
    assert not fixture.channel.close()
    fixture.channel.write([b"late"])
    assert fixture.transport.written == b""


def test_oldest_delivery_of_token_is_taken_first() -> None:
    unacked: Unacked[str, int] = Unacked()
    unacked.first["t"] = 1
    unacked.add_duplicate("t", 2)
    unacked.add_duplicate("t", 3)
    unacked.first["u"] = 4
    assert list(unacked.entries()) == [("t", 1), ("u", 4), ("t", 2), ("t", 3)]
    unacked.keep(lambda entry: entry != 1)
    assert [unacked.take("t"), unacked.take("t"), unacked.take("t")] == [2, 3, None]
    assert unacked.take("u") == 4


def test_entries_of_ended_deliveries_are_trimmed() -> None:
    unacked: Unacked[int, Delivery | int] = Unacked()
    for token in range(1000):
        unacked.first[token] = token
        unacked.trim(lambda entry: False)
    assert len(unacked.first) < 100


def test_cache_of_targets_is_cleared_when_it_is_full() -> None:
    targets: dict[int, int] = {}
    for key in range(MAX_TARGETS + 1):
        cache_target(targets, key, key)
    assert targets == {MAX_TARGETS: MAX_TARGETS}
