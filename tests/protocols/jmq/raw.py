"""JMQ client over a real connection that sends the packets of a test.

Requests are numbered as the Java client numbers them, and wait for their reply; messages received
meanwhile are kept in `messages`.
"""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from sluicemq.model.errors import ConnectionLost, RequestTimeout
from sluicemq.protocols.java import Long, encode_utf
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import (
    QUEUE_CLASS,
    TOPIC_CLASS,
    Xid,
    encode_blocks,
    encode_header,
    encode_sysid,
    encode_xid,
)
from sluicemq.protocols.jmq.packets import DestType, PacketType, Status
from sluicemq.protocols.jmq.wire import Decoder, Oversized, Packet, encode_packet

TIMEOUT_SECONDS: Final = 60.0
"""Maximum time of a reply in seconds."""
PREFETCH: Final = 200
"""Messages that a consumer may be sent before it asks for more."""
ADDRESS: Final = bytes(10) + b"\xff\xff\x7f\x00\x00\x01"


def login_body(user: str, secret: str) -> bytes:
    """Return the body of AUTHENTICATE; `secret` is in its final form."""
    fields = [encode_utf(user), encode_utf(secret)]
    return b"".join(len(field).to_bytes(2, "big") + field for field in fields)


def basic(user: str, password: str) -> bytes:
    """Return the body of a basic login of the Java client: at most 57 bytes of the password."""
    return login_body(user, base64.b64encode(password.encode()[:57]).decode())


def ask_port_mapper(port: int, line: bytes = b"101\n", host: str = "127.0.0.1") -> list[str]:
    """Return the lines that the port mapper sends until it closes the connection."""
    with socket.create_connection((host, port), TIMEOUT_SECONDS) as connection:
        connection.sendall(line)
        response = bytearray()
        while data := connection.recv(4096):
            response += data
    return response.decode().splitlines()


class RawJmq:
    """A connection. Raises ConnectionLost when it breaks, RequestTimeout without a reply."""

    def __init__(
        self, port: int, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1"
    ) -> None:
        """Connect from the address `source`, and send nothing yet."""
        connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS, (source, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = (
            tls.wrap_socket(connection, server_hostname="localhost") if tls else connection
        )
        self.messages: deque[Packet] = deque()
        self.others: deque[Packet] = deque()
        """Other packets that have arrived and that no call waited for."""
        self._decoder = Decoder()
        self._number = 0
        self._sequence = 0
        self._replies: defaultdict[int, deque[Packet]] = defaultdict(deque)
        self.session = 0

    @classmethod
    def login(cls, port: int, user: str = "guest", password: str = "guest") -> Self:
        """Connect, log in with a password, and create a session in auto-acknowledge mode."""
        client = cls(port)
        try:
            client.hello()
            reply = client.authenticate(basic(user, password))
            assert status_of(reply) == Status.OK, reply.properties
            client.session = client.create_session()
        except BaseException:
            client.close()
            raise
        return client

    # --- packets -----------------------------------------------------------------------------

    def send_packet(
        self,
        kind: int,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
        header: bytes = b"",
    ) -> None:
        """Send a packet without requesting a reply."""
        self.send_bytes(encode_packet(kind, 0, 0, properties, header, body))

    def request(
        self,
        kind: int,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
        header: bytes = b"",
    ) -> Packet:
        """Send a request and return its reply."""
        self._number += 1
        self.send_bytes(encode_packet(kind, packets.A, self._number, properties, header, body))
        return self.reply_to(self._number)

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise RequestTimeout("nothing is taken any more") from None
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def reply_to(self, number: int) -> Packet:
        """Wait for the reply with that consumer id."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while number not in self._replies:
            self.read(deadline)
        waiting = self._replies[number]
        reply = waiting.popleft()
        if not waiting:
            del self._replies[number]
        return reply

    def read(self, deadline: float) -> None:
        """Read available packets, waiting for them until `deadline` (monotonic seconds)."""
        remaining = deadline - time.monotonic()
        try:
            self.socket.settimeout(max(0.0001, remaining))
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            raise RequestTimeout("nothing came") from None
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        finally:
            self.socket.settimeout(TIMEOUT_SECONDS)
        if not data:
            raise ConnectionLost("the broker has closed the connection")
        for packet in self._decoder.feed(data):
            assert not isinstance(packet, Oversized)
            if packet.is_message:
                self.messages.append(packet)
            elif packet.type % 2 or packet.type == PacketType.AUTHENTICATE_REQUEST:
                self._replies[packet.consumer_id].append(packet)
            else:
                self.others.append(packet)
        assert self._decoder.error is None, self._decoder.error

    def is_closed_by_broker(self) -> bool:
        """Return whether the broker closes the connection; packets before that are skipped."""
        try:
            while True:
                self.read(time.monotonic() + TIMEOUT_SECONDS)
        except ConnectionLost:
            return True
        except RequestTimeout:
            return False

    # --- connections and sessions ------------------------------------------------------------

    def hello(self, **more: object) -> tuple[Packet, Packet]:
        """Send HELLO; return HELLO_REPLY and AUTHENTICATE_REQUEST."""
        reply = self.request(
            PacketType.HELLO,
            {
                "JMQProtocolLevel": 500,
                "JMQVersion": "6.9.0",
                "JMQUserAgent": "raw",
                "JMQReconnectable": False,
                **more,
            },
        )
        assert reply.type == PacketType.HELLO_REPLY
        number = self._number
        if status_of(reply) != Status.OK:
            return reply, reply
        return reply, self.reply_to(number)

    def authenticate(self, body: bytes, kind: str = "basic") -> Packet:
        """Send AUTHENTICATE and return its reply."""
        return self.request(PacketType.AUTHENTICATE, {"JMQAuthType": kind}, body)

    def create_session(self, mode: int | None = 1) -> int:
        """Create a session and return its id; without `mode` it is transacted."""
        properties = None if mode is None else {"JMQAckMode": mode}
        reply = self.request(PacketType.CREATE_SESSION, properties)
        assert status_of(reply) == Status.OK, reply.properties
        return number_of(reply, "JMQSessionID")

    def produce(self, name: str, kind: int = DestType.QUEUE) -> Packet:
        """Send CREATE_DESTINATION and ADD_PRODUCER like the Java client; return the last reply."""
        destination = {"JMQDestination": name, "JMQDestType": kind}
        reply = self.request(PacketType.CREATE_DESTINATION, destination)
        if status_of(reply) not in (Status.OK, Status.CONFLICT):
            return reply
        return self.request(
            PacketType.ADD_PRODUCER, {**destination, "JMQSessionID": Long(self.session)}
        )

    def consume(self, name: str, kind: int = DestType.QUEUE, **more: object) -> Packet:
        """Send CREATE_DESTINATION, ADD_CONSUMER and START; return the reply to ADD_CONSUMER."""
        destination = {"JMQDestination": name, "JMQDestType": kind}
        reply = self.request(PacketType.CREATE_DESTINATION, destination)
        if status_of(reply) not in (Status.OK, Status.CONFLICT):
            return reply
        properties = {
            **destination,
            "JMQSessionID": Long(self.session),
            "JMQNoLocal": False,
            "JMQReconnect": False,
            "JMQShare": False,
            "JMQAckMode": 1,
            "JMQSize": PREFETCH,
            **more,
        }
        reply = self.request(PacketType.ADD_CONSUMER, properties)
        self.send_packet(PacketType.START)
        return reply

    # --- messages ----------------------------------------------------------------------------

    def message(
        self,
        name: str,
        body: bytes,
        *,
        number: int = 0,
        kind: int = DestType.QUEUE,
        persistent: bool = True,
        transaction: int = 0,
        properties: Mapping[str, object] | None = None,
    ) -> bytes:
        """Encode a BYTES_MESSAGE; with `number`, request a reply with that consumer id."""
        self._sequence += 1
        flags = packets.A if number else 0
        flags |= packets.P if persistent else 0
        flags |= packets.Q if kind & DestType.QUEUE else 0
        header = encode_header(
            name,
            destination_class=QUEUE_CLASS if kind & DestType.QUEUE else TOPIC_CLASS,
            transaction_id=transaction,
        )
        port = self.socket.getsockname()[1]
        sysid = encode_sysid(time.time_ns() // 1_000_000, ADDRESS, port, self._sequence)
        return encode_packet(
            PacketType.BYTES_MESSAGE, flags, number, properties, header, body, 4, sysid=sysid
        )

    def send_all(self, name: str, bodies: Iterable[bytes], transaction: int = 0) -> list[int]:
        """Send persistent messages without waiting; return the consumer ids of their replies."""
        numbers, packets = [], []
        for body in bodies:
            self._number += 1
            numbers.append(self._number)
            packets.append(self.message(name, body, number=self._number, transaction=transaction))
        self.send_bytes(b"".join(packets))
        return numbers

    def send(self, name: str, body: bytes, *, transaction: int = 0) -> int:
        """Send a persistent message to a queue, and return the status of its reply."""
        (number,) = self.send_all(name, [body], transaction)
        return status_of(self.reply_to(number))

    def receive(self, seconds: float = TIMEOUT_SECONDS) -> Packet:
        """Return the next message, and resume the flow if the broker has paused it.

        Raises RequestTimeout if none arrives.
        """
        deadline = time.monotonic() + seconds
        while not self.messages:
            self.read(deadline)
        message = self.messages.popleft()
        if message.flags & packets.C:
            flow = {"JMQConsumerID": Long(message.consumer_id), "JMQSize": PREFETCH}
            self.send_packet(PacketType.RESUME_FLOW, flow)
        return message

    def acknowledge(self, *received: Packet, transaction: int = 0) -> int:
        """Acknowledge messages, and return the status of the reply."""
        header = encode_header(transaction_id=transaction)
        return status_of(self.request(PacketType.ACKNOWLEDGE, None, blocks_of(received), header))

    # --- transactions ------------------------------------------------------------------------

    def request_transaction(
        self, kind: int, xid: Xid | None = None, transaction: int = 0, flags: int | None = None
    ) -> Packet:
        """Send a request about a transaction, and return its reply."""
        return self.reply_to(self.send_transaction_packet(kind, xid, transaction, flags))

    def send_transaction_packet(
        self, kind: int, xid: Xid | None = None, transaction: int = 0, flags: int | None = None
    ) -> int:
        """Send a request about a transaction, and return its number for `reply_to`."""
        properties: dict[str, object] = {}
        if transaction:
            properties["JMQTransactionID"] = Long(transaction)
        if flags is not None:
            properties["JMQXAFlags"] = flags
        if kind == PacketType.START_TRANSACTION and xid is None:
            properties["JMQSessionID"] = Long(self.session)
        self._number += 1
        body = encode_xid(xid) if xid is not None else b""
        self.send_bytes(encode_packet(kind, packets.A, self._number, properties, body=body))
        return self._number

    # --- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def status_of(packet: Packet) -> int:
    """Return the JMQStatus of a reply."""
    return number_of(packet, "JMQStatus")


def number_of(packet: Packet, name: str) -> int:
    """Return a property, which must be a number."""
    value = packet.properties.get(name)
    assert isinstance(value, int), packet.properties
    return value


def blocks_of(received: Iterable[Packet]) -> bytes:
    """Return the body of an ACKNOWLEDGE of these messages."""
    return encode_blocks([(packet.consumer_id, packet.sysid) for packet in received])
