"""A broker in memory with connections of several protocols and a JMS requester."""

from __future__ import annotations

from sluicemq.broker import Consumer, Delivery, Window
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.transport import Transport
from sluicemq.protocols.vibemq import wire as vibemq
from sluicemq.protocols.vibemq.session import VibemqSession
from sluicemq.security.access import OPEN, Access
from tests.protocols.msglite.harness import Peer as MsglitePeer
from tests.protocols.phpmq.harness import Peer as PhpmqPeer
from tests.protocols.vibemq.harness import Peer as VibemqPeer
from tests.support.offload import idle_large_deliveries, idle_offload
from tests.support.sessions import RecordedTransport, SessionHarness

TEMPORARY = Address(Kind.QUEUE, "temporary_destination://queue/127.0.0.1/4711/1")
TEMPORARY_TOPIC = Address(Kind.TOPIC, "temporary_destination://topic/127.0.0.1/4711/1")


class Harness(SessionHarness):
    def __init__(self) -> None:
        super().__init__()
        self.replies = ReplyAddresses(self.clock.wall)

    def open(self, transport: Transport) -> PhpmqSession:
        return PhpmqSession(transport, self.broker, idle_offload())

    def phpmq(self, access: Access = OPEN) -> PhpmqPeer:
        transport = RecordedTransport(self)
        return PhpmqPeer(
            self, transport, PhpmqSession(transport, self.broker, idle_offload(), access=access)
        )

    def msglite(self, access: Access = OPEN) -> MsglitePeer:
        transport = RecordedTransport(self)
        session = MsgliteSession(
            transport, self.broker, self.replies, idle_offload(), access=access
        )
        return MsglitePeer(self, transport, session)

    def vibemq(self, access: Access | None = None) -> VibemqPeer:
        transport = RecordedTransport(self)
        session = VibemqSession(transport, self.broker, access or Access(), idle_large_deliveries())
        peer = VibemqPeer(self, transport, session)
        [reply] = peer.send(vibemq.Frame(vibemq.CONNECT, "hello"))
        assert reply.type == vibemq.CONNECT_ACK
        return peer


class Requester:
    """A JMS client that sends requests and consumes a temporary queue and topic for replies."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.received: list[Message] = []
        broker = harness.broker
        queue = broker.destinations.declare(TEMPORARY, owner=self)
        topic = broker.destinations.declare(TEMPORARY_TOPIC, owner=self)
        broker.attach(queue.queue, self, Window(100, True), owner=self)
        broker.attach(broker.subscribe(topic, "requester"), self, Window(100, True), owner=self)

    def send_request(
        self, reply_to: Address | None = TEMPORARY, correlation: str = "", number: int = 1
    ) -> None:
        message = Message(
            Address(Kind.QUEUE, "requests"),
            b"request",
            BodyKind.TEXT,
            Origin.JMQ,
            message_id=f"ID:{number}",
            correlation_id=correlation,
            reply_to=reply_to,
        )
        self.harness.broker.publish(self.harness.broker.destinations.queue("requests"), message)
        self.harness.run_event_loop()

    def replies(self) -> list[tuple[bytes, str]]:
        """Return the bodies and correlation ids received since the last call."""
        replies, self.received = self.received, []
        return [(message.body, message.correlation_id) for message in replies]

    def close(self) -> None:
        self.harness.broker.delete_temporary(self)
        self.harness.run_event_loop()

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.message is not None
            self.received.append(delivery.message)

    def detached(self, consumer: Consumer) -> None:
        pass
