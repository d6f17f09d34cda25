"""The JMS sessions of a connection: how their messages are acknowledged, and whether they are
delivered at all at the moment."""

from __future__ import annotations

from typing import Final

from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import Connection, number
from sluicemq.protocols.jmq.consumers import JmsConsumer
from sluicemq.protocols.jmq.packets import AckMode, Status
from sluicemq.protocols.jmq.statuses import Refused
from sluicemq.protocols.jmq.wire import Packet
from sluicemq.protocols.transport import Timer

RECOVERY_SECONDS: Final = 0.1
"""From the first START of a client that has reconnected to the first delivery."""
MOST_KNOWN: Final = 1000
"""Consumers that a session remembers."""


class JmsSession:
    """One session.

    number     JMQSessionID
    mode       NONE also for sessions with transactions
    stopped    nothing is delivered, whatever the connection says
    consumers  those that hold something after they were closed included
    known      numbers of the latest that it had: acknowledgements may come late
    """

    __slots__ = ("consumers", "known", "mode", "number", "stopped")

    def __init__(self, number: int, mode: AckMode) -> None:
        self.number = number
        self.mode = mode
        self.stopped = False
        self.consumers: dict[int, JmsConsumer] = {}
        self.known: dict[int, None] = {}

    def add(self, consumer: JmsConsumer) -> None:
        """It has another consumer."""
        self.consumers[consumer.number] = consumer
        self.known[consumer.number] = None
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]

    @property
    def holds(self) -> bool:
        """Messages are held until they are acknowledged."""
        return self.mode != AckMode.NO_ACK

    def level(self) -> None:
        """It was stopped or started."""
        for consumer in list(self.consumers.values()):
            consumer.level()


class SessionRegistry:
    """The requests that are about sessions."""

    __slots__ = ("_connection", "_delay")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._delay: Timer | None = None
        """START has been said, but has no effect yet."""

    def create(self, packet: Packet) -> None:
        """CREATE_SESSION."""
        given = number(packet, "JMQAckMode", AckMode.NONE)
        try:
            mode = AckMode(given)
        except ValueError:
            raise Refused(Status.BAD_REQUEST, f"there is no JMQAckMode {given}") from None
        connection = self._connection
        if len(connection.sessions) >= connection.options.most:
            raise Refused(Status.NOT_ALLOWED, f"{len(connection.sessions)} sessions are enough")
        session = JmsSession(connection.coordinator.uid(), mode)
        connection.sessions[session.number] = session
        connection.reply(packet, properties={"JMQSessionID": Long(session.number)})

    def find(self, packet: Packet) -> JmsSession:
        """That of a request. One that names none belongs to the connection as such: a connection
        consumer has no session. Raises Refused."""
        connection = self._connection
        chosen = number(packet, "JMQSessionID", connection.number)
        session = connection.sessions.get(chosen)
        if session is None:
            if chosen != connection.number:
                raise Refused(Status.NOT_FOUND, f"there is no session {chosen} here")
            session = connection.sessions[chosen] = JmsSession(chosen, AckMode.NONE)
        return session

    def destroy(self, packet: Packet) -> None:
        """DESTROY_SESSION. What was not acknowledged, and committed, goes back."""
        chosen = number(packet, "JMQSessionID")
        session = self._connection.sessions.pop(chosen, None)
        if session is None:
            raise Refused(Status.NOT_FOUND, f"there is no session {chosen} here")
        connection = self._connection
        connection.coordinator.branches.leave_session(connection, chosen)
        self.end(session)
        connection.reply(packet)

    def end(self, session: JmsSession) -> None:
        """Give back what its consumers hold, and forget them."""
        for consumer in list(session.consumers.values()):
            consumer.end()
            self._connection.consumers.pop(consumer.number, None)
        session.consumers.clear()

    # --- START and STOP ----------------------------------------------------------------------

    def start(self, packet: Packet) -> None:
        """START, which has no reply: of the connection, or of one session."""
        if "JMQSessionID" in packet.properties:
            session = self.find(packet)
            session.stopped = False
            session.level()
        elif self._connection.reconnected:
            # a Java client says START before it has ended its own recovery, and until then it
            # cannot acknowledge: what came at once would stay with it for ever
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
        """STOP: after its reply nothing is delivered until START."""
        if "JMQSessionID" in packet.properties:
            session = self.find(packet)
            session.stopped = True
            session.level()
        else:
            self.pause()
        self._connection.reply(packet)

    def pause(self) -> None:
        """Deliver nothing on this connection until START."""
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        outbound = self._connection.outbound
        outbound.started = False
        outbound.measure()
