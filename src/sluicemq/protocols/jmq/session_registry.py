"""JMS sessions of a connection, with their acknowledge mode and delivery state."""

from __future__ import annotations

from typing import Final

from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import JmqConnection, number
from sluicemq.protocols.jmq.consumers import JmsConsumer
from sluicemq.protocols.jmq.packets import AckMode, RejectedRequest, Status
from sluicemq.protocols.jmq.wire import Packet
from sluicemq.protocols.transport import Timer

RECOVERY_SECONDS: Final = 0.1
"""Delay between the first START of a reconnected client and the first delivery."""
MOST_KNOWN: Final = 1000
"""Maximum number of consumers that a session remembers."""


class JmsSession:
    """JMS session.

    number     JMQSessionID
    mode       NONE also for sessions with transactions
    stopped    True if the session delivers nothing, also on a started connection
    consumers  consumers, including closed ones with unacked messages
    known      numbers of the latest consumers, for late acknowledgements
    """

    __slots__ = ("consumers", "known", "mode", "number", "stopped")

    def __init__(self, number: int, mode: AckMode) -> None:
        self.number = number
        self.mode = mode
        self.stopped = False
        self.consumers: dict[int, JmsConsumer] = {}
        self.known: dict[int, None] = {}

    def add(self, consumer: JmsConsumer) -> None:
        """Add a consumer."""
        self.consumers[consumer.number] = consumer
        self.known[consumer.number] = None
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]

    @property
    def holds(self) -> bool:
        """True if messages stay unacked until the client acknowledges them."""
        return self.mode != AckMode.NO_ACK

    def level(self) -> None:
        """Apply a stop or start to the consumers."""
        for consumer in list(self.consumers.values()):
            consumer.level()


class SessionRegistry:
    """Handlers of the session requests."""

    __slots__ = ("_connection", "_delay")

    def __init__(self, connection: JmqConnection) -> None:
        self._connection = connection
        self._delay: Timer | None = None
        """Timer of a delayed START."""

    def create(self, packet: Packet) -> None:
        """Handle CREATE_SESSION."""
        given = number(packet, "JMQAckMode", AckMode.NONE)
        try:
            mode = AckMode(given)
        except ValueError:
            raise RejectedRequest(Status.BAD_REQUEST, f"there is no JMQAckMode {given}") from None
        connection = self._connection
        if len(connection.sessions) >= connection.options.most:
            raise RejectedRequest(
                Status.NOT_ALLOWED, f"{len(connection.sessions)} sessions are enough"
            )
        session = JmsSession(connection.coordinator.uid(), mode)
        connection.sessions[session.number] = session
        connection.reply(packet, properties={"JMQSessionID": Long(session.number)})

    def find(self, packet: Packet) -> JmsSession:
        """Return the session of a request. Raises Refused.

        A request without a session belongs to the connection: connection consumers have none.
        """
        connection = self._connection
        chosen = number(packet, "JMQSessionID", connection.number)
        session = connection.sessions.get(chosen)
        if session is None:
            if chosen != connection.number:
                raise RejectedRequest(Status.NOT_FOUND, f"there is no session {chosen} here")
            session = connection.sessions[chosen] = JmsSession(chosen, AckMode.NONE)
        return session

    def destroy(self, packet: Packet) -> None:
        """Handle DESTROY_SESSION. Requeues unacked and uncommitted messages."""
        chosen = number(packet, "JMQSessionID")
        session = self._connection.sessions.pop(chosen, None)
        if session is None:
            raise RejectedRequest(Status.NOT_FOUND, f"there is no session {chosen} here")
        connection = self._connection
        connection.coordinator.branches.leave_session(connection, chosen)
        self.end(session)
        connection.reply(packet)

    def end(self, session: JmsSession) -> None:
        """Requeue the unacked messages of the consumers and remove the consumers."""
        for consumer in list(session.consumers.values()):
            consumer.end()
            self._connection.consumers.pop(consumer.number, None)
        session.consumers.clear()

    # --- START and STOP ----------------------------------------------------------------------

    def start(self, packet: Packet) -> None:
        """Handle START of the connection or of one session. It has no reply."""
        if "JMQSessionID" in packet.properties:
            session = self.find(packet)
            session.stopped = False
            session.level()
        elif self._connection.reconnected:
            # A Java client sends START before its own recovery has ended. Until then it cannot
            # acknowledge: messages delivered immediately would stay unacked forever.
            self._connection.reconnected = False
            self._delay = self._connection.transport.call_later(RECOVERY_SECONDS, self._begin)
        elif self._delay is None:
            self._begin()

    def _begin(self) -> None:
        self._delay = None
        outbound = self._connection.outbound
        outbound.started = True
        outbound.measure()

    def stop(self, packet: Packet) -> None:
        """Handle STOP: after its reply the connection delivers nothing until START."""
        if "JMQSessionID" in packet.properties:
            session = self.find(packet)
            session.stopped = True
            session.level()
        else:
            self.pause()
        self._connection.reply(packet)

    def pause(self) -> None:
        """Pause the deliveries of this connection until START."""
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        outbound = self._connection.outbound
        outbound.started = False
        outbound.measure()
