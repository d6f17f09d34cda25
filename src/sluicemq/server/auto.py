"""A connection whose protocol is decided by its first bytes."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.model.errors import ConfigurationError
from sluicemq.protocols.link import Link, Session
from sluicemq.server.recognise import recognise


class AutoSession:
    """Waits until the protocol is recognised, then passes everything on to its session."""

    __slots__ = ("_first", "_link", "_open", "_session")

    def __init__(self, link: Link, open_session: Callable[[str], Session]) -> None:
        self._link = link
        self._open = open_session
        self._first = b""
        self._session: Session | None = None

    def receive(self, data: bytes) -> None:
        """Hand over as soon as the protocol is known; close if it is none of ours."""
        if self._session is not None:
            self._session.receive(data)
            return
        self._first += data
        protocol = recognise(self._first)
        if protocol is None:
            return
        if not protocol:
            self._link.close(f"no protocol begins with {self._first[:8]!r}")
            return
        try:
            self._session = self._open(protocol)
        except ConfigurationError as error:
            self._link.close(str(error))
            return
        first, self._first = self._first, b""
        self._session.receive(first)

    def end_of_input(self) -> None:
        """Nothing was said, or the session knows what to do."""
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
        if self._session is not None:
            self._session.closed()

    def shutdown(self) -> None:
        """See Session."""
        if self._session is not None:
            self._session.shutdown()
        else:
            self._link.close()
