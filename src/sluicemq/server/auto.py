"""Session that detects its protocol from the first bytes of the client.

    first bytes                     protocol
    'H' then a digit                PHPMQ: message header "H01…"
    a method and a blank            HTTP: "GET /…"
    > < ? .  blank, tab, CR, LF     msglite: a sigil, or blanks before one
    1B                              JMQ: packet magic 1B FF E3 C2
    '1'-'9'                         JMQ's port mapper: the client sends its version in digits
    00                              VibeMQ: big-endian length of a frame below 16 MiB
    two other characters of text    msglite too, which answers unknown commands with an error

In all of them the client speaks first, so nothing is sent before the protocol is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sluicemq.broker import Consumer
from sluicemq.model.errors import ConfigurationError, TooManyConnections
from sluicemq.protocols.transport import Login, Session, SessionInfo, Timer, Transport

MSGLITE_FIRST = b"><?. \t\r\n"

PORT_MAPPER = "jmq-portmapper"
"""Protocol name of JMQ's port mapper."""

HTTP_METHODS: Final = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"PATCH ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE ",
)
_TEXT: Final = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\r\n")


def detect_protocol(first: bytes) -> str | None:
    """Return the protocol's name; "" if it is unknown; None if more bytes are needed."""
    if not first:
        return None
    byte = first[:1]
    if byte == b"H" and (len(first) < 2 or first[1:2].isdigit()):
        return "phpmq" if len(first) > 1 else None
    if byte in MSGLITE_FIRST:
        return "msglite"
    if byte == b"\x1b":
        return "jmq"
    if byte in b"123456789":
        return PORT_MAPPER
    if byte == b"\0":
        return "vibemq"
    for method in HTTP_METHODS:
        if first.startswith(method):
            return "http"
        if method.startswith(first):
            return None
    if byte == b"0" or first[0] not in _TEXT:
        return ""
    if len(first) < 2:
        return None
    return "msglite" if first[1] in _TEXT else ""


def detect_jmq_protocol(first: bytes) -> str | None:
    """Return the protocol on a JMQ listener: packets, or requests to the port mapper.

    A request to the port mapper may be an empty line.
    """
    if not first:
        return None
    if first[:1] == b"\x1b":
        return "jmq"
    return PORT_MAPPER if first[:1] in b"0123456789\r\n" else ""


class AutoSession:
    """Session that waits until the protocol is detected, then delegates to a session of it.

    If the client sends nothing for `patience` seconds (0 = no limit), the session assumes the
    `silent` protocol, in which the server may have to send first. `login` is the login state
    until the protocol is detected.
    """

    __slots__ = (
        "_detect_protocol",
        "_first",
        "_login",
        "_open",
        "_session",
        "_silent",
        "_timer",
        "_transport",
    )

    def __init__(
        self,
        transport: Transport,
        open_session: Callable[[str], Session],
        detect_protocol: Callable[[bytes], str | None] = detect_protocol,
        *,
        silent: str = "",
        patience: float = 0.0,
        login: Login = Login.NONE,
    ) -> None:
        self._transport = transport
        self._login = login
        self._open = open_session
        self._detect_protocol = detect_protocol
        self._first = b""
        self._session: Session | None = None
        self._silent = silent
        self._timer: Timer | None = transport.call_later(patience, self._lose) if patience else None

    def receive(self, data: bytes) -> None:
        """Detect the protocol and open its session; close if no protocol matches."""
        if self._session is not None:
            self._session.receive(data)
            return
        self._forget()
        self._first += data
        protocol = self._detect_protocol(self._first)
        if protocol is None:
            return
        if not protocol:
            self._transport.close(f"no protocol begins with {self._first[:8]!r}")
            return
        try:
            self._session = self._open(protocol)
        except (ConfigurationError, TooManyConnections) as error:
            self._transport.close(str(error))
            return
        first, self._first = self._first, b""
        self._session.receive(first)

    @property
    def buffered(self) -> int:
        """Bytes of input that are not processed yet."""
        return len(self._first) if self._session is None else self._session.buffered

    @property
    def incomplete(self) -> bool:
        """True if a frame, or the bytes that identify the protocol, are received in part."""
        return bool(self._first) if self._session is None else self._session.incomplete

    @property
    def login(self) -> Login:
        """State of the client's login."""
        return self._login if self._session is None else self._session.login

    def discard_input(self) -> None:
        """Drop the unfinished input."""
        self._first = b""
        if self._session is not None:
            self._session.discard_input()

    def _lose(self) -> None:
        """Open a session of the silent protocol, because the client has sent nothing."""
        self._timer = None
        self._session = self._open(self._silent)
        self._session.end_of_input()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_of_input(self) -> None:
        """Pass EOF to the session; close the connection if the protocol is unknown."""
        self._forget()
        if self._session is not None:
            self._session.end_of_input()
        else:
            self._transport.close()

    def flushed(self) -> None:
        """Pass the event to the session, if the protocol is known."""
        if self._session is not None:
            self._session.flushed()

    def pause_delivery(self) -> None:
        """Stop deliveries, if the protocol is known."""
        if self._session is not None:
            self._session.pause_delivery()

    def resume_delivery(self) -> None:
        """Resume deliveries, if the protocol is known."""
        if self._session is not None:
            self._session.resume_delivery()

    def closed(self) -> None:
        """Cancel the timer and release the session's resources."""
        self._forget()
        if self._session is not None:
            self._session.closed()

    def shutdown(self) -> None:
        """Shut the session down; close the connection if the protocol is unknown."""
        self._forget()
        if self._session is not None:
            self._session.shutdown()
        else:
            self._transport.close()

    def disconnect(self, reason: str) -> None:
        """Disconnect the session; close the connection if the protocol is unknown."""
        self._forget()
        if self._session is not None:
            self._session.disconnect(reason)
        else:
            self._transport.close(reason)

    def session_info(self) -> SessionInfo:
        """Return the session's info; protocol `auto` while the protocol is unknown."""
        if self._session is None:
            return SessionInfo("auto", state="connecting")
        return self._session.session_info()

    def consumers(self) -> Iterable[Consumer]:
        """Return the consumers of the session; none while the protocol is unknown."""
        return () if self._session is None else self._session.consumers()
