"""PHPMQ connections to a broker in memory."""

from __future__ import annotations

from sluicemq.broker import EngineSettings
from sluicemq.model.message import Durability
from sluicemq.protocols.offload import Offload
from sluicemq.protocols.phpmq import wire
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.transport import Transport
from sluicemq.security.access import OPEN, Access
from tests.support.offload import Budget, ManualBackground
from tests.support.sessions import RecordedTransport, SessionHarness, SessionPeer


def encode_dispatch(
    queue: bytes,
    body: bytes,
    message_id: bytes,
    ttl: int = 0,
    *,
    dispatch_version: int = 2,
) -> bytes:
    """Encode a dispatch (type 003) with a message id of any length. Version 1 has no TTL packet."""
    packets = [(wire.QUEUE_NAME, queue), (wire.CONTENT, body), (wire.MESSAGE_ID, message_id)]
    if dispatch_version != 1 and ttl >= 0:
        packets.append((wire.TIME_TO_LIVE, b"%d" % ttl))
    return wire._encode_message(wire.DISPATCH, packets)


def in_line_form(message: bytes, newline: bytes) -> bytes:
    """Return a message with a line break behind its header, each packet header and each content."""
    parts = [message[:8]]
    position = 8
    while position < len(message):
        start = position + 32
        header = message[position:start]
        position = start + int(header[3:])
        parts += [header, message[start:position]]
    return b"".join(part + newline for part in parts)


class Harness(SessionHarness):
    def __init__(self, settings: EngineSettings | None = None) -> None:
        super().__init__(settings)
        self.background = ManualBackground()
        self.memory = Budget()
        self.offload = Offload(self.background, self.memory)

    def open(self, transport: Transport) -> PhpmqSession:
        return PhpmqSession(transport, self.broker, self.offload)

    def connect(
        self,
        dispatch_version: wire.DispatchVersion = "auto",
        durability: Durability = Durability.SYNC,
        limits: wire.Limits | None = None,
        access: Access = OPEN,
    ) -> Peer:
        transport = RecordedTransport(self)
        session = PhpmqSession(
            transport,
            self.broker,
            self.offload,
            access=access,
            dispatch_version=dispatch_version,
            durability=durability,
            limits=limits,
        )
        return Peer(self, transport, session)


class Peer(SessionPeer):
    """A client's end of a connection, which sends and receives frames."""

    def __init__(
        self, harness: Harness, transport: RecordedTransport, session: PhpmqSession
    ) -> None:
        super().__init__(harness, transport, session)
        self.decoder = wire.Decoder(kinds=wire.FROM_SERVER)

    def send(self, queue: bytes, *bodies: bytes, ttl: int = 0) -> None:
        self.send_bytes(b"".join(wire.encode_send(queue, body, ttl) for body in bodies))

    def consume(self, queue: bytes, count: int) -> None:
        self.send_bytes(wire.encode_consume(queue, count))

    def acknowledge(self, frame: wire.Frame) -> None:
        self.send_bytes(wire.encode_acknowledge(frame[1], frame[3]))

    def frames(self) -> list[wire.Frame]:
        """Return the dispatches received since the last call."""
        frames = self.decoder.feed(self.transport.take_written())
        assert self.decoder.error is None
        assert not self.decoder.incomplete
        return frames

    def bodies(self) -> list[bytes]:
        return [frame[2] for frame in self.frames()]
