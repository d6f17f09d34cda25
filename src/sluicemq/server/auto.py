"""A connection whose protocol is decided by its first bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluicemq.broker import Consumer
from sluicemq.model.errors import ConfigurationError, TooManyConnections
from sluicemq.protocols.transport import Login, Session, SessionInfo, Timer, Transport
from sluicemq.server.protocol_detection import detect_protocol


class AutoSession:
    """Waits until the protocol is recognised, then passes everything on to its session.

    With `patience` (seconds; 0 = none) a client that says nothing for so long is taken for one of
    the `silent` protocol, whose clients may wait to be spoken to. `login` is what holds until the
    protocol is recognised.
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
        """Hand over as soon as the protocol is known; close if it is none of ours."""
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
        """See Session."""
        return len(self._first) if self._session is None else self._session.buffered

    @property
    def incomplete(self) -> bool:
        """See Session."""
        return bool(self._first) if self._session is None else self._session.incomplete

    @property
    def login(self) -> Login:
        """See Session."""
        return self._login if self._session is None else self._session.login

    def discard_input(self) -> None:
        """See Session."""
        self._first = b""
        if self._session is not None:
            self._session.discard_input()

    def _lose(self) -> None:
        """Patience: whoever has said nothing will say nothing."""
        self._timer = None
        self._session = self._open(self._silent)
        self._session.end_of_input()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_of_input(self) -> None:
        """Nothing was said, or the session knows what to do."""
        self._forget()
        if self._session is not None:
            self._session.end_of_input()
        else:
            self._transport.close()

    def flushed(self) -> None:
        """See Session."""
        if self._session is not None:
            self._session.flushed()

    def pause_delivery(self) -> None:
        """See Session."""
        if self._session is not None:
            self._session.pause_delivery()

    def resume_delivery(self) -> None:
        """See Session."""
        if self._session is not None:
            self._session.resume_delivery()

    def closed(self) -> None:
        """See Session."""
        self._forget()
        if self._session is not None:
            self._session.closed()

    def shutdown(self) -> None:
        """See Session."""
        self._forget()
        if self._session is not None:
            self._session.shutdown()
        else:
            self._transport.close()

    def disconnect(self, reason: str) -> None:
        """See Session."""
        self._forget()
        if self._session is not None:
            self._session.disconnect(reason)
        else:
            self._transport.close(reason)

    def session_info(self) -> SessionInfo:
        """See Session."""
        if self._session is None:
            return SessionInfo("auto", state="connecting")
        return self._session.session_info()

    def consumers(self) -> Iterable[Consumer]:
        """See Session."""
        return () if self._session is None else self._session.consumers()
