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

from collections.abc import Callable
from typing import Final

from sluicemq.model.errors import ConfigurationError, TooManyConnections
from sluicemq.protocols.transport import Alarm, Login, NoConsumers, Session, SessionInfo, Transport

PORT_MAPPER = "jmq-portmapper"
"""Protocol name of JMQ's port mapper."""

_FIRST_BYTES: Final = {
    **dict.fromkeys(b"><?. \t\r\n", "msglite"),
    0x1B: "jmq",
    **dict.fromkeys(b"123456789", PORT_MAPPER),
    0: "vibemq",
}
"""Protocols that one byte identifies."""

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
    if first[:1] == b"H" and (len(first) < 2 or first[1:2].isdigit()):
        return "phpmq" if len(first) > 1 else None
    if first[0] in _FIRST_BYTES:
        return _FIRST_BYTES[first[0]]
    for method in HTTP_METHODS:
        if first.startswith(method):
            return "http"
        if method.startswith(first):
            return None
    if first[:1] == b"0" or first[0] not in _TEXT:
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


class AutoSession(NoConsumers):
    """Session that waits until the protocol is detected, then is replaced by a session of it.

    If the client sends nothing for `silence_timeout` seconds (0 = no limit), the session assumes
    the `silent` protocol, in which the server may have to send first. `login` is the login state
    until the protocol is detected.
    """

    __slots__ = (
        "_alarm",
        "_detect_protocol",
        "_first",
        "_open_session",
        "_silent",
        "_transport",
        "login",
    )

    def __init__(
        self,
        transport: Transport,
        open_session: Callable[[str], Session],
        detect_protocol: Callable[[bytes], str | None] = detect_protocol,
        *,
        silent: str = "",
        silence_timeout: float = 0.0,
        login: Login = Login.NONE,
    ) -> None:
        self._transport = transport
        self.login = login
        self._open_session = open_session
        self._detect_protocol = detect_protocol
        self._first = b""
        self._silent = silent
        self._alarm = Alarm(transport)
        if silence_timeout:
            self._alarm.set(silence_timeout, self._open_silent_protocol)

    def receive(self, data: bytes) -> None:
        """Detect the protocol and open its session; close if no protocol matches."""
        self.closed()
        self._first += data
        protocol = self._detect_protocol(self._first)
        if protocol is None:
            return
        if not protocol:
            self._transport.close(f"no protocol begins with {self._first[:8]!r}")
            return
        try:
            session = self._open_session(protocol)
        except (ConfigurationError, TooManyConnections) as error:
            self._transport.close(str(error))
            return
        first, self._first = self._first, b""
        self._transport.replace_session(session)
        session.receive(first)

    def _open_silent_protocol(self) -> None:
        """Open a session of the silent protocol, because the client has sent nothing."""
        session = self._open_session(self._silent)
        self._transport.replace_session(session)
        session.end_of_input()

    @property
    def buffered(self) -> int:
        """Number of bytes received, which do not identify the protocol yet."""
        return len(self._first)

    @property
    def incomplete(self) -> bool:
        """True if the bytes that identify the protocol are received in part."""
        return bool(self._first)

    def discard_input(self) -> None:
        """Drop the bytes received."""
        self._first = b""

    def end_of_input(self) -> None:
        """Close the connection: the protocol stays unknown."""
        self.disconnect("")

    def closed(self) -> None:
        """Cancel the timer."""
        self._alarm.cancel()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Close the connection: the client could not read the reason."""
        self.closed()
        self._transport.close("" if stopping else reason)

    def session_info(self) -> SessionInfo:
        """Return session info with the protocol `auto`."""
        return SessionInfo("auto", state="connecting")
