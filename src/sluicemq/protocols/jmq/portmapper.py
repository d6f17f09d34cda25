"""The port mapper: where a JMS client learns which port serves what (JMQ, section 1).

    client  "101\\n", or nothing at all if it is older than iMQ 3.0
    broker  "101 <instance> 301\\n"
            "<service> <protocol> <type> <port>\\n" …
            ".\\n", and the end of its output

What the client's line says makes no difference; who sends none is answered when it has had time to.
The clients choose by name, protocol and type, so that there must not be a second `tcp NORMAL` row:
the C client takes any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from sluicemq.protocols.transport import Login, SessionInfo, Timer, Transport

VERSION: Final = 101
"""Of the port mapper's protocol: the clients refuse any other."""
PACKET_VERSION: Final = 301
"""Of the packets, which tells the Java client not to fall back to version 200."""
MAX_LINE: Final = 128
"""Bytes of the client's line; after so many it counts as ended."""


class Service(NamedTuple):
    """One row. Neither field may hold a blank; `port` is 1-65535.

    name      "jms", "ssljms", "portmapper"
    protocol  "tcp" or "tls"
    type      "NORMAL" for services that carry messages, "PORTMAPPER"
    """

    name: str
    protocol: str
    type: str
    port: int


def answer(instance: str, services: Iterable[Service]) -> bytes:
    """All that a port mapper says. `instance` is the broker's name, without blanks."""
    rows = [f"{each.name} {each.protocol} {each.type} {each.port}\n" for each in services]
    return "".join([f"{VERSION} {instance} {PACKET_VERSION}\n", *rows, ".\n"]).encode()


class PortMapperSession:
    """One client that asks. `rows` makes the answer when it is needed; `patience` in seconds is the
    time for the client's line, 0 = for ever."""

    __slots__ = ("_answered", "_heard", "_rows", "_timer", "_transport")

    def __init__(self, transport: Transport, rows: Callable[[], bytes], patience: float) -> None:
        self._transport = transport
        self._rows = rows
        self._heard = 0
        self._answered = False
        self._timer: Timer | None = (
            transport.call_later(patience, self._answer) if patience else None
        )

    def receive(self, data: bytes) -> None:
        """Anything up to the end of a line, be it CR or LF."""
        self._heard += len(data)
        if b"\n" in data or b"\r" in data or self._heard >= MAX_LINE:
            self._answer()

    @property
    def buffered(self) -> int:
        """Nothing is kept of the line."""
        return 0

    @property
    def incomplete(self) -> bool:
        """See `buffered`."""
        return False

    @property
    def login(self) -> Login:
        """Who asks has to ask in the time for a login."""
        return Login.DONE if self._answered else Login.DUE

    def discard_input(self) -> None:
        """See `buffered`."""

    def end_of_input(self) -> None:
        """Whoever says no more has said enough."""
        self._answer()

    def _answer(self) -> None:
        if not self._answered:
            self._answered = True
            self._cancel()
            self._transport.write((self._rows(),))
            self._transport.close()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flushed(self) -> None:
        """See Session."""

    def pause_delivery(self) -> None:
        """See Session."""

    def resume_delivery(self) -> None:
        """See Session."""

    def closed(self) -> None:
        """See Session."""
        self._answered = True
        self._cancel()

    def shutdown(self) -> None:
        """Nothing that it could say would be of use any more."""
        self.disconnect("")

    def disconnect(self, reason: str) -> None:
        """The same."""
        if not self._answered:
            self._answered = True
            self._cancel()
            self._transport.close(reason)

    def session_info(self) -> SessionInfo:
        """Who only asks where to go."""
        return SessionInfo("jmq", state="closing" if self._answered else "connecting")

    def consumers(self) -> tuple[()]:
        """See Session."""
        return ()
