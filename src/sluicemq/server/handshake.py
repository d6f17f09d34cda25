"""A server's TLS context whose failing handshakes tell the peer why.

When a handshake fails, OpenSSL has written an alert - "unknown ca", "protocol version" - for the
peer, but the event loop closes the connection without sending it, and the peer would only see the
connection end. So the TLS object sends it itself, to the socket that its task has named.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from contextvars import ContextVar
from typing import Final

ARRIVING: Final[ContextVar[socket.socket | None]] = ContextVar("arriving", default=None)
"""The connection that the current task shakes hands with."""


class _Handshake(ssl.SSLObject):
    """One connection's TLS."""

    outgoing: ssl.MemoryBIO
    peer: socket.socket | None = None

    def do_handshake(self) -> None:
        """As usual; if it fails, the alert is sent."""
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
    """See the module; a context of a server."""

    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As usual; remembers where an alert has to go."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, _Handshake):
            made.outgoing = outgoing
            made.peer = ARRIVING.get()
        return made
