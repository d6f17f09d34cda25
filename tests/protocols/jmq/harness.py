"""JMQ connections to a broker in memory, packet by packet."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from sluicemq.broker import Broker, Destination, EngineSettings
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal
from sluicemq.model.access import EVERYBODY
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Property
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import (
    QUEUE_CLASS,
    TOPIC_CLASS,
    Xid,
    encode_blocks,
    encode_header,
    encode_xid,
)
from sluicemq.protocols.jmq.packets import A, AckMode, DestType, P, PacketType, Q, Status
from sluicemq.protocols.jmq.session import Coordinator, JmqSession
from sluicemq.protocols.jmq.wire import Decoder, Packet, encode_packet
from sluicemq.protocols.transport import Transport
from sluicemq.security.access import Access
from tests.journal.support import crash
from tests.support.sessions import RecordedTransport, SessionHarness, SessionPeer

Properties = Mapping[str, object]


def string(text: str) -> bytes:
    """Encode a string as AUTHENTICATE does: two bytes of length, then UTF-8."""
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def login(user: str, password: str) -> bytes:
    """Return the body of AUTHENTICATE."""
    return string(user) + string(b64encode(password.encode()).decode())


def status(packet: Packet) -> Property:
    return packet.properties["JMQStatus"]


def xid(name: str, branch: str = "") -> bytes:
    return encode_xid(Xid(77, name.encode(), branch.encode()))


class Harness(SessionHarness):
    def __init__(
        self, settings: EngineSettings | None = None, access: Access | None = None
    ) -> None:
        super().__init__(settings)
        self.access = access or Access(EVERYBODY)
        self.coordinator = Coordinator(self.broker)
        self.sent = 0

    def open(self, transport: Transport) -> JmqSession:
        return JmqSession(transport, self.broker, self.coordinator, self.access)

    def connect_without_hello(
        self, options: SessionOptions | None = None, access: Access | None = None
    ) -> Peer:
        """Open a connection without sending HELLO; the default login is by password."""
        if options is None:
            options = SessionOptions(authentication="basic")
        transport = RecordedTransport(self)
        session = JmqSession(
            transport, self.broker, self.coordinator, access or self.access, options
        )
        return Peer(self, transport, session)

    def connect(
        self,
        options: SessionOptions | None = None,
        client_id: str = "",
        access: Access | None = None,
        **hello: object,
    ) -> Peer:
        """Open a connection, log in, and send START."""
        peer = self.connect_without_hello(options, access)
        peer.hello(**hello)
        reply = peer.request(PacketType.AUTHENTICATE, {}, login("anna", "secret"))
        assert status(reply) == Status.OK, reply.properties
        if client_id:
            peer.request(PacketType.SET_CLIENTID, {"JMQClientID": client_id}, expect=Status.OK)
        peer.send_packet(PacketType.START)
        return peer

    def queue(self, name: str) -> Destination:
        destination = self.broker.destinations.find(Address(Kind.QUEUE, name))
        assert destination is not None
        return destination

    def topic(self, name: str) -> Destination:
        destination = self.broker.destinations.find(Address(Kind.TOPIC, name))
        assert destination is not None
        return destination

    def next_sysid(self) -> bytes:
        """Return a new message id."""
        self.sent += 1
        return encode_sysid(self.clock.wall, self.sent)


class DiskHarness(Harness):
    """A broker whose journal is in a directory, so that it can be restarted."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.journal = FileJournal.open(directory, notify=_ignore)
        self.broker = Broker(self.journal, self.clock)
        self.broker.on_flush_needed(self._schedule_flush)
        self.journal.set_snapshot_source(lambda: snapshot(self.broker))
        recover(self.broker, self.journal.recovery)
        self.coordinator = Coordinator(self.broker)

    def run_event_loop(self, milliseconds: int = 0) -> None:
        super().run_event_loop(milliseconds)
        self.journal.sync()
        super().run_event_loop()
        self.journal.sync()
        super().run_event_loop()

    def restart(self) -> DiskHarness:
        """Crash the broker, and start another on its journal."""
        crash(self.journal)
        return DiskHarness(self.directory)


def _ignore(callback: Callable[[], None]) -> None:
    """Ignore the notification; the harness calls `sync`."""


def encode_sysid(timestamp: int, sequence: int, port: int = 1234) -> bytes:
    return b"".join(
        (
            timestamp.to_bytes(8, "big"),
            bytes(10) + b"\xff\xff\x7f\0\0\x01",
            port.to_bytes(4, "big"),
            sequence.to_bytes(4, "big"),
        )
    )


class Peer(SessionPeer):
    """A client's end of a connection."""

    harness: Harness

    def __init__(self, harness: Harness, transport: RecordedTransport, session: JmqSession) -> None:
        super().__init__(harness, transport, session)
        self.decoder = Decoder()
        self.numbers = 0
        self.inbox: list[Packet] = []
        """Packets that have arrived and have not been read by a test."""

    # --- packets -----------------------------------------------------------------------------

    def receive(self) -> list[Packet]:
        """Return the packets that have arrived since the last call."""
        for packet in self.decoder.feed(self.transport.take_written()):
            assert type(packet) is Packet
            self.inbox.append(packet)
        assert self.decoder.error is None
        assert not self.decoder.incomplete
        packets, self.inbox = self.inbox, []
        return packets

    def send_packet(
        self,
        kind: int,
        properties: Properties | None = None,
        body: bytes = b"",
        flags: int = 0,
        header: bytes = b"",
    ) -> list[Packet]:
        """Send a packet without requesting a reply, and return the packets received."""
        self.send_bytes(encode_packet(kind, flags, 0, properties, header, body))
        packets = self.receive()
        self.inbox = packets
        return packets

    def encode_request(
        self,
        kind: int,
        properties: Properties | None = None,
        body: bytes = b"",
        flags: int = 0,
        header: bytes = b"",
    ) -> tuple[int, bytes]:
        """Encode a packet that requests a reply, and return the consumer id of the reply too."""
        self.numbers += 1
        return self.numbers, encode_packet(kind, flags | A, self.numbers, properties, header, body)

    def request(
        self,
        kind: int,
        properties: Properties | None = None,
        body: bytes = b"",
        flags: int = 0,
        header: bytes = b"",
        expect: int | None = None,
    ) -> Packet:
        """Send a request and return its reply; other packets stay in the inbox."""
        number, data = self.encode_request(kind, properties, body, flags, header)
        self.send_bytes(data)
        packets = self.receive()
        [reply] = [p for p in packets if p.consumer_id == number and p.type == kind + 1]
        self.inbox = [p for p in packets if p is not reply]
        if expect is not None:
            assert status(reply) == expect, reply.properties
        return reply

    def request_status(
        self, kind: int, properties: Properties | None = None, body: bytes = b""
    ) -> int:
        """Send a request and return the status of its reply."""
        result = status(self.request(kind, properties, body))
        assert isinstance(result, int)
        return result

    # --- connections and sessions ------------------------------------------------------------

    def hello(self, **properties: object) -> Packet:
        """Send HELLO and return its reply; keep AUTHENTICATE_REQUEST in `challenge`."""
        request_properties: dict[str, object] = {
            "JMQProtocolLevel": 500,
            "JMQVersion": "1",
            **properties,
        }
        reply = self.request(PacketType.HELLO, request_properties)
        self.challenge = [p for p in self.inbox if p.type == PacketType.AUTHENTICATE_REQUEST]
        self.inbox = [p for p in self.inbox if p.type != PacketType.AUTHENTICATE_REQUEST]
        return reply

    def create_session(self, mode: AckMode = AckMode.CLIENT) -> int:
        reply = self.request(PacketType.CREATE_SESSION, {"JMQAckMode": int(mode)}, expect=Status.OK)
        return _int(reply.properties["JMQSessionID"])

    # --- destinations ------------------------------------------------------------------------

    def destination_properties(
        self, name: str, topic: bool = False, temporary: bool = False
    ) -> dict[str, object]:
        bits = DestType.TOPIC if topic else DestType.QUEUE
        return {
            "JMQDestination": name,
            "JMQDestType": bits | (DestType.TEMP if temporary else 0),
        }

    def create(self, name: str, topic: bool = False, temporary: bool = False) -> int:
        """Create a destination, and return the status of the reply."""
        destination = self.destination_properties(name, topic, temporary)
        result = status(self.request(PacketType.CREATE_DESTINATION, destination))
        assert isinstance(result, int)
        return result

    # --- sending -----------------------------------------------------------------------------

    def message(
        self,
        name: str,
        body: bytes | str = b"",
        topic: bool = False,
        flags: int = P,
        kind: int = PacketType.TEXT_MESSAGE,
        consumer_id: int = 0,
        properties: Properties | None = None,
        sysid: bytes = b"",
        priority: int = 4,
        expiration: int = 0,
        **header: Any,
    ) -> bytes:
        """Return the packet of a message."""
        return encode_packet(
            kind,
            flags | (0 if topic else Q),
            consumer_id,
            properties,
            encode_header(name, destination_class=TOPIC_CLASS if topic else QUEUE_CLASS, **header),
            body.encode() if isinstance(body, str) else body,
            priority,
            expiration,
            sysid or self.harness.next_sysid(),
        )

    def send(self, name: str, *bodies: str, expect: int = Status.OK, **options: Any) -> None:
        """Send messages one by one, and check the status of each reply."""
        flags = options.pop("flags", P) | A
        for body in bodies:
            self.numbers += 1
            self.send_bytes(
                self.message(name, body, flags=flags, consumer_id=self.numbers, **options)
            )
            packets = self.receive()
            [reply] = [p for p in packets if p.consumer_id == self.numbers and p.type == 9]
            assert status(reply) == expect, reply.properties
            self.inbox = [p for p in packets if p is not reply]

    # --- consuming ---------------------------------------------------------------------------

    def consume(
        self,
        name: str,
        session: int,
        topic: bool = False,
        size: int | None = 1000,
        **options: object,
    ) -> int:
        """Add a consumer, and return its id."""
        properties = {
            **self.destination_properties(name, topic),
            "JMQSessionID": Long(session),
            **options,
        }
        if size is not None:
            properties["JMQSize"] = size
        reply = self.request(PacketType.ADD_CONSUMER, properties, expect=Status.OK)
        return _int(reply.properties["JMQConsumerID"])

    def delivered(self) -> list[Packet]:
        """Return the messages received, which must be the only packets."""
        packets = self.receive()
        assert all(packet.is_message for packet in packets), packets
        return packets

    def texts(self) -> list[str]:
        """Return the texts of the messages that have arrived."""
        return [packet.body.decode() for packet in self.delivered()]

    def acknowledge(
        self,
        *messages: Packet,
        expect: int = Status.OK,
        transaction: int = 0,
        **properties: object,
    ) -> None:
        self.request(
            PacketType.ACKNOWLEDGE,
            properties,
            blocks(*messages),
            header=encode_header(transaction_id=transaction),
            expect=expect,
        )

    def close_consumer(self, consumer: int, last: Packet | None = None) -> None:
        properties: dict[str, object] = {"JMQConsumerID": Long(consumer), "JMQBlock": True}
        if last is None:
            properties |= {"JMQBodyType": 0, "JMQRedeliverAll": True}
        else:
            properties["JMQBodyType"] = 3
        body = last.sysid if last else b""
        self.request(PacketType.DELETE_CONSUMER, properties, body, expect=Status.OK)

    def resume(self, consumer: int, size: int) -> None:
        self.send_packet(PacketType.RESUME_FLOW, {"JMQConsumerID": Long(consumer), "JMQSize": size})

    def redeliver(self, *messages: Packet, attempted: bool, transaction: int = 0) -> None:
        properties: dict[str, object] = {"JMQSetRedelivered": attempted}
        if transaction:
            properties["JMQTransactionID"] = Long(transaction)
        header = encode_header(transaction_id=transaction)
        self.send_packet(PacketType.REDELIVER, properties, blocks(*messages), header=header)

    # --- transactions ------------------------------------------------------------------------

    def begin(self, session: int = 0) -> int:
        """Begin a local transaction, and return its id."""
        reply = self.request(
            PacketType.START_TRANSACTION, {"JMQSessionID": Long(session)}, expect=Status.OK
        )
        return _int(reply.properties["JMQTransactionID"])

    def commit(self, transaction: int, expect: int = Status.OK) -> None:
        properties = {"JMQTransactionID": Long(transaction)}
        self.request(PacketType.COMMIT_TRANSACTION, properties, expect=expect)


def blocks(*messages: Packet) -> bytes:
    """Return the body of an ACKNOWLEDGE of these deliveries."""
    return encode_blocks([(message.consumer_id, message.sysid) for message in messages])


class CountingDict(dict[Any, Any]):
    """A dictionary that counts the items visited by iterations."""

    visited = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.visited += 1
            yield item


@contextmanager
def executed_lines(counts: list[int]) -> Iterator[None]:
    """Append the number of lines that the context executes; each iteration of a loop counts."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)
    counts.append(count)


def _int(value: Property) -> int:
    assert isinstance(value, int)
    return value
