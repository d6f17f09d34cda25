"""A connection whose protocol is decided by its first bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluicemq.broker import Consumer
from sluicemq.model.errors import ConfigurationError, TooManyConnections
from sluicemq.protocols.link import Link, Login, Portrait, Session, Timer
from sluicemq.server.recognise import recognise


class AutoSession:
    """Waits until the protocol is recognised, then passes everything on to its session.

    With `patience` (seconds; 0 = none) a client that says nothing for so long is taken for one of
    the `silent` protocol, whose clients may wait to be spoken to. `login` is what holds until the
    protocol is recognised.
    """

    __slots__ = (
        "_first",
        "_link",
        "_login",
        "_open",
        "_recognise",
        "_session",
        "_silent",
        "_timer",
    )

    def __init__(
        self,
        link: Link,
        open_session: Callable[[str], Session],
        recognise: Callable[[bytes], str | None] = recognise,
        *,
        silent: str = "",
        patience: float = 0.0,
        login: Login = Login.NONE,
    ) -> None:
        self._link = link
        self._login = login
        self._open = open_session
        self._recognise = recognise
        self._first = b""
        self._session: Session | None = None
        self._silent = silent
        self._timer: Timer | None = link.call_later(patience, self._lose) if patience else None

    def receive(self, data: bytes) -> None:
        """Hand over as soon as the protocol is known; close if it is none of ours."""
        if self._session is not None:
            self._session.receive(data)
            return
        self._forget()
        self._first += data
        protocol = self._recognise(self._first)
        if protocol is None:
            return
        if not protocol:
            self._link.close(f"no protocol begins with {self._first[:8]!r}")
            return
        try:
            self._session = self._open(protocol)
        except (ConfigurationError, TooManyConnections) as error:
            self._link.close(str(error))
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
            self._link.close()

    def flushed(self) -> None:
        """See Session."""
        if self._session is not None:
            self._session.flushed()

    def congest(self) -> None:
        """See Session."""
        if self._session is not None:
            self._session.congest()

    def relieve(self) -> None:
        """See Session."""
        if self._session is not None:
            self._session.relieve()

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
            self._link.close()

    def dismiss(self, reason: str) -> None:
        """See Session."""
        self._forget()
        if self._session is not None:
            self._session.dismiss(reason)
        else:
            self._link.close(reason)

    def portrait(self) -> Portrait:
        """See Session."""
        if self._session is None:
            return Portrait("auto", state="connecting")
        return self._session.portrait()

    def consumers(self) -> Iterable[Consumer]:
        """See Session."""
        return () if self._session is None else self._session.consumers()
