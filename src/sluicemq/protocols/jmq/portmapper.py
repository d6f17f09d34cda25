"""Port mapper, which tells JMS clients the port of each service (JMQ, section 1).

    client  "101\\n", or nothing if it is older than iMQ 3.0
    broker  "101 <instance> 301\\n"
            "<service> <protocol> <type> <port>\\n" …
            ".\\n", and the end of its output

The content of the client's line is ignored; a client that sends none is answered after a timeout.
Clients select a row by name, protocol and type. There must be only one `tcp NORMAL` row, because
the C client uses any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.transport import Login, SessionInfo, Timer, Transport

VERSION: Final = 101
"""Version of the port mapper protocol; clients refuse any other."""
PACKET_VERSION: Final = 301
"""Packet version; keeps the Java client from falling back to version 200."""
MAX_LINE: Final = 128
"""Maximum size of the client's line, in bytes; the line ends there at the latest."""


class Service(NamedTuple):
    """Row of the answer. Fields must not contain blanks; `port` is 1-65535.

    name      "jms", "ssljms", "portmapper"
    protocol  "tcp" or "tls"
    type      "NORMAL" for services that carry messages, "PORTMAPPER"
    """

    name: str
    protocol: str
    type: str
    port: int


def answer(instance: str, services: Iterable[Service]) -> bytes:
    """Encode the port mapper's answer. `instance` is the broker's name, without blanks."""
    rows = [f"{row.name} {row.protocol} {row.type} {row.port}\n" for row in services]
    return "".join([f"{VERSION} {instance} {PACKET_VERSION}\n", *rows, ".\n"]).encode()


def read_services(answer: bytes) -> list[Service]:
    """Parse a port mapper's answer. Raises ConnectionLost if it is not one."""
    head, *lines = answer.splitlines()[:1000] or [b""]
    if head.split(b" ")[:1] != [b"%d" % VERSION]:
        raise ConnectionLost("what answers there is no port mapper")
    found = []
    for line in lines:
        words = line.decode("utf-8", "replace").split(" ")
        if words[0] in ("", "."):
            break
        if len(words) >= 4 and words[3].isascii() and words[3].isdigit():
            found.append(Service(words[0], words[1], words[2], int(words[3])))
    return found


class PortMapperSession:
    """Session of one port mapper client.

    `rows` returns the answer; `patience` is the timeout for the client's line in seconds, 0 = none.
    """

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
        """Read up to the end of a line (CR or LF), then answer."""
        self._heard += len(data)
        if b"\n" in data or b"\r" in data or self._heard >= MAX_LINE:
            self._answer()

    @property
    def buffered(self) -> int:
        """Number of buffered bytes: always 0, because the line is discarded."""
        return 0

    @property
    def incomplete(self) -> bool:
        """Always False, because the line is discarded."""
        return False

    @property
    def login(self) -> Login:
        """Login state: due until the request is answered, so the login timeout applies."""
        return Login.DONE if self._answered else Login.DUE

    def discard_input(self) -> None:
        """Do nothing: no input is buffered."""

    def end_of_input(self) -> None:
        """Answer a client that closes its side without sending a line."""
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
        """Do nothing: the session sends one answer."""

    def pause_delivery(self) -> None:
        """Do nothing: the session delivers no messages."""

    def resume_delivery(self) -> None:
        """Do nothing: the session delivers no messages."""

    def closed(self) -> None:
        """Cancel the timer: the connection is closed."""
        self._answered = True
        self._cancel()

    def shutdown(self) -> None:
        """Close the connection without an answer."""
        self.disconnect("")

    def disconnect(self, reason: str) -> None:
        """Close the connection without an answer."""
        if not self._answered:
            self._answered = True
            self._cancel()
            self._transport.close(reason)

    def session_info(self) -> SessionInfo:
        """Return the session's protocol and state."""
        return SessionInfo("jmq", state="closing" if self._answered else "connecting")

    def consumers(self) -> tuple[()]:
        """Return no consumers."""
        return ()
