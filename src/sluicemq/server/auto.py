"""Session that detects its protocol from the first bytes of the client."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluicemq.broker import Consumer
from sluicemq.model.errors import ConfigurationError, TooManyConnections
from sluicemq.protocols.transport import Login, Session, SessionInfo, Timer, Transport
from sluicemq.server.protocol_detection import detect_protocol


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
