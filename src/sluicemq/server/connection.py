"""One client connection: bytes between the event loop and a protocol session.

What a session writes is collected and sent at the end of the turn by one write straight to the
socket. Only what the kernel does not take at once goes through the event loop's own buffer; while
that is the case nothing more is handed over, so that at any moment it is known whether
everything has left (`Session.flushed`), and how much waits for a slow reader.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

import structlog

from sluicemq.model.errors import JournalError
from sluicemq.protocols.link import Portrait, Session
from sluicemq.server.peers import name_of, peer_user

if TYPE_CHECKING:
    from sluicemq.broker import Consumer
    from sluicemq.server.listener import OpenListener

LINGER_SECONDS: Final = 2.0
"""After the last bytes are sent, how long to wait for the peer to close: closing a socket with
unread input resets it, and the peer might never see the error it was sent."""

DISMISSED_SECONDS: Final = 5.0
"""For a peer that has been told to go, to take what it is sent until then."""

_numbers: Final = itertools.count(1)

log = structlog.get_logger("sluicemq.connection")


class Connection(asyncio.Protocol):
    """See the module, and `sluicemq.protocols.link.Link`."""

    __slots__ = (
        "_blocked",
        "_closing",
        "_congested",
        "_descriptor",
        "_ended",
        "_hastens",
        "_listener",
        "_out",
        "_out_bytes",
        "_quick",
        "_reason",
        "_session",
        "_socket",
        "_stuck",
        "_transport",
        "_turns",
        "active_at",
        "bytes_in",
        "bytes_out",
        "number",
        "peer",
        "peer_user",
        "since",
    )

    def __init__(self, listener: OpenListener) -> None:
        self._listener = listener
        self._turns = listener.turns
        self._session: Session | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._blocked = False
        self._congested = False
        self._closing = False
        self._ended = False
        self._reason = ""
        self._descriptor = -1
        """Of the socket if it is written to directly, which TLS does not allow."""
        self._socket = -1
        self._hastens = False
        self._quick: socket.socket | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self.active_at = 0
        """Steady ms of the last bytes in either direction."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.number = next(_numbers)
        """Of all connections since the process began."""
        self.since = 0
        """Wall ms."""
        self.peer = ""
        self.peer_user = ""

    # --- from the event loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("sslcontext") is None
        if not plain:
            # Sends what the handshake has left behind (session tickets): it would count as unsent
            # output of ours until the first bytes have been read.
            self._transport.writelines(())
        # What is left in the event loop's buffer is reported, and so is its leaving. (With a mark
        # of 0 TLS connections are paused for ever: their buffer is always "at" it.)
        self._transport.set_write_buffer_limits(high=1, low=0)
        self.peer = name_of(transport.get_extra_info("peername"))
        self._turns.begin()
        self.active_at = self._turns.broker.clock.steady
        self.since = self._turns.broker.clock.wall
        if not self._listener.admit(self):
            self._ended = True
            self._transport.abort()
            return
        raw = transport.get_extra_info("socket")
        if raw is not None:
            self._socket = raw.fileno()
        if plain and raw is not None:
            self._descriptor = self._socket
            self._hastens = raw.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK")
        certificate = transport.get_extra_info("peercert")
        if certificate:
            kind = self._listener.options.client_user
            self.peer_user = peer_user(certificate, kind)
            if not self.peer_user:
                # nobody in particular must not become everybody
                log.info("turned away", peer=self.peer, reason=f"no {kind} in its certificate")
                self.abort("its certificate names no user")
                return
        try:
            self._session = self._listener.room(self, self._listener.options)
        except Exception as error:
            self._fault(error)
            return
        log.debug(
            "connected",
            peer=self.peer,
            listener=str(self._listener.url),
            **({"certified": self.peer_user} if self.peer_user else {}),
        )

    def data_received(self, data: bytes) -> None:
        if self._closing or self._session is None:
            return
        turns = self._turns
        turns.begin()
        self.active_at = turns.broker.clock.steady
        self.bytes_in += len(data)
        try:
            self._session.receive(data)
        except Exception as error:
            self._fault(error)

    def eof_received(self) -> bool:
        if self._ended or self._closing:
            return False
        self._turns.begin()
        if self._session is not None:
            try:
                self._session.end_of_input()
                if self._descriptor < 0:
                    # TLS has no half-close: what is to be said must be said now. (For a peer that
                    # is behind it is too late: what waits for it is given back.)
                    self._turns.broker.flush()
                    self.flush()
            except Exception as error:
                self._fault(error)
        return self._descriptor >= 0

    def connection_lost(self, exc: Exception | None) -> None:
        if self._quick is not None:
            self._quick.detach()
            self._quick = None
        self._turns.begin()
        self._release()
        # It may be about to be flushed in this turn, and its descriptor somebody else's by then.
        self._ended = True
        self._listener.leave(self)
        self._listener.unread.discard(self)
        if self._stuck is not None:
            self._stuck.cancel()
        reason = self._reason or (str(exc) if exc else "")
        log.debug("disconnected", peer=self.peer, reason=reason)

    def pause_writing(self) -> None:
        self._blocked = True
        timeout = self._listener.options.output_timeout
        if timeout and self._stuck is None:
            self._stuck = self._turns.loop.call_later(timeout, self._cut_off)

    def resume_writing(self) -> None:
        self._blocked = False
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        self._turns.outgoing(self)

    # --- for the session ---------------------------------------------------------------------

    def write(self, chunks: Iterable[bytes]) -> None:
        out = self._out
        if not out or self._blocked:  # what waits for a slow reader is measured in every turn
            self._turns.outgoing(self)
        out.extend(chunks)

    def close(self, reason: str = "") -> None:
        if not self._closing:
            self._closing = True
            self._reason = reason
            self._turns.outgoing(self)
            if reason:
                log.info("closing", peer=self.peer, reason=reason)

    def hasten(self) -> None:
        if self._hastens and not self._ended:
            if self._quick is None:
                # The event loop's socket object makes a new one for every call: keep our own. It
                # shares the descriptor, and lets go of it when the event loop closes it.
                self._quick = socket.socket(fileno=self._descriptor)
            # once each time: the kernel falls back to delayed acknowledgements by itself
            self._quick.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def pause_reading(self) -> None:
        if not self._ended:
            self._transport.pause_reading()
            self._listener.unread.add(self)

    def resume_reading(self) -> None:
        self._listener.unread.discard(self)
        if not self._ended:
            self._transport.resume_reading()

    def look_for_the_end(self) -> None:
        """Read on, although the session has enough, if the peer will send no more.

        Who does not read does not learn that the peer has gone, and what the session waits for may
        never come. What is left to be read is in the kernel's buffer, which is bounded. (An end
        that comes after more than that buffer holds cannot be seen.)
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        if poll.poll(0):
            self.resume_reading()

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._turns.loop.call_later(delay, self._call, callback)

    def _call(self, callback: Callable[[], None]) -> None:
        self._turns.begin()
        try:
            callback()
        except Exception as error:
            self._fault(error)

    # --- sending -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what has been written; called at the end of a turn and when the peer reads on."""
        if self._ended:
            return
        if self._out and not self._blocked:
            self._send()
        if self._blocked or self._ended:
            self._measure()
            return
        session = self._session
        if session is not None:
            try:
                if self._congested:
                    self._congested = False
                    session.relieve()
                session.flushed()
            except Exception as error:
                self._fault(error)
                return
        if self._closing and not self._out:
            self._finish()

    def _send(self) -> None:
        """Hand over what there is; `_blocked` afterwards if some of it has to wait for the peer."""
        out = self._out
        data = out[0] if len(out) == 1 else b"".join(out)
        self._out = []
        self.active_at = self._turns.broker.clock.steady
        self.bytes_out += len(data)
        if self._descriptor >= 0:
            try:
                sent = os.write(self._descriptor, data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.abort(str(error))
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._transport.write(data)

    def _fault(self, error: Exception) -> None:
        """An error of ours must cost one connection, unless the journal is at stake."""
        if isinstance(error, JournalError):
            self._turns.fail(error)
            return
        log.error("internal error", peer=self.peer, exc_info=error)
        self.abort("internal error")

    def _measure(self) -> None:
        """The peer is behind: by how much?"""
        if self._congested or self._ended or self._session is None:
            return
        waiting = self._transport.get_write_buffer_size() + sum(map(len, self._out))
        if waiting > self._listener.options.output_high_water:
            self._congested = True
            self._session.congest()

    def _cut_off(self) -> None:
        """The peer has taken nothing for too long."""
        self._stuck = None
        if not self._ended:
            timeout = self._listener.options.output_timeout
            self._reason = f"took none of the bytes sent to it for {timeout:g} s"
            log.info("cut off", peer=self.peer, reason=self._reason)
            self._abort()

    # --- the end -----------------------------------------------------------------------------

    def _finish(self) -> None:
        """Everything is sent: say so, and give the peer time to read it."""
        self._release()
        self._ended = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._listener.unread.discard(self)
            self._transport.resume_reading()
            self._turns.loop.call_later(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()

    def _abort(self) -> None:
        self._closing = True
        self._ended = True
        self._out.clear()
        self._transport.abort()
        self._release()

    def abort(self, reason: str) -> None:
        """Close without sending what waits."""
        self._reason = self._reason or reason
        self._abort()

    def shutdown(self) -> None:
        """The broker stops: let the session say goodbye."""
        if self._session is not None and not self._closing:
            self._session.shutdown()

    def dismiss(self, reason: str) -> None:
        """Somebody wants it closed: let the session say why, but not for long."""
        if self._ended:
            return
        turns = self._turns
        turns.begin()
        if self._session is not None and not self._closing:
            try:
                self._session.dismiss(reason)
            except Exception as error:
                self._fault(error)
                return
        turns.loop.call_later(DISMISSED_SECONDS, self._see_off, reason)

    def _see_off(self, reason: str) -> None:
        if not self._ended:
            self.abort(reason)

    # --- what it is --------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """connecting, open, blocked (nothing is read from it for now), slow (nothing more is sent
        to it before it has read what was), closing."""
        if self._closing or self._ended or self._session is None:
            return "closing"
        if self in self._listener.unread:
            return "blocked"
        if self._congested:
            return "slow"
        return self._session.portrait().state

    def portrait(self) -> Portrait:
        """What its session knows."""
        if self._session is None:
            return Portrait(self._listener.url.protocol, self.peer_user)
        return self._session.portrait()

    def consumers(self) -> Iterable[Consumer]:
        """What its session receives by."""
        return () if self._session is None else self._session.consumers()

    def _release(self) -> None:
        session, self._session = self._session, None
        if session is not None and not self._turns.dead:
            self._turns.begin()
            try:
                session.closed()
            except Exception as error:
                self._fault(error)
