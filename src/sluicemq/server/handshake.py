"""TLS context of a server that sends the alert of a failed handshake to the peer.

When a handshake fails, OpenSSL has written an alert - "unknown ca", "protocol version" - for the
peer, but the event loop closes the connection without sending it, and the peer would only see the
connection end. Therefore the TLS object sends the
alert itself, to the socket in the context variable `ARRIVING`.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from contextvars import ContextVar
from typing import Final

ARRIVING: Final[ContextVar[socket.socket | None]] = ContextVar("arriving", default=None)
"""Socket of the connection whose TLS handshake the current task performs."""


class _Handshake(ssl.SSLObject):
    """TLS object of one connection."""

    outgoing: ssl.MemoryBIO
    peer: socket.socket | None = None

    def do_handshake(self) -> None:
        """Perform the handshake; if it fails, send the alert and raise ssl.SSLError."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            alert = self.outgoing.read()
            if alert and self.peer is not None:
                with suppress(OSError):
                    self.peer.send(alert)
            raise
        self.peer = None


class HandshakeContext(ssl.SSLContext):
    """TLS context of a server whose connections send the alert of a failed handshake."""

    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Return the TLS object, with the socket to which it sends an alert."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, _Handshake):
            made.outgoing = outgoing
            made.peer = ARRIVING.get()
        return made
