"""Client connections.

A connection transfers bytes between the event loop and a protocol session.

It collects the output of its session and sends it at the end of the event loop
iteration with one write to the socket. Bytes that the kernel does not accept go to the event loop's
write buffer. Until that buffer is empty the connection writes no more, so it always knows whether
all output is sent (`Session.flushed`) and how many bytes wait for a slow peer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

import structlog

from sluicemq.broker import Consumer
from sluicemq.model.errors import JournalError, TooManyConnections
from sluicemq.model.url import Url
from sluicemq.protocols.transport import Login, Session, SessionInfo
from sluicemq.server.admission import Admission, name_of

LINGER_SECONDS: Final = 2.0
"""Time for the peer to close after the last bytes are sent. Closing a socket with unread input
resets it, and the peer might not receive the error that was sent."""

DISCONNECT_SECONDS: Final = 5.0
"""Time for a disconnected peer to read its remaining output."""

_RESET: Final = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which closing a TCP socket resets the connection."""

_numbers: Final = itertools.count(1)

log = structlog.get_logger("sluicemq.connection")


class Connection(asyncio.Protocol):
    """Client connection; the `sluicemq.protocols.transport.Transport` of its session."""

    __slots__ = (
        "_admission",
        "_batch",
        "_blocked",
        "_can_quick_ack",
        "_closing",
        "_delivery_paused",
        "_descriptor",
        "_ended",
        "_input_at",
        "_login_at",
        "_login_used",
        "_out",
        "_output_timer",
        "_progress_from",
        "_quick_ack_socket",
        "_reason",
        "_session",
        "_transport",
        "_was_incomplete",
        "active_at",
        "connected_at",
        "held_bytes",
        "number",
        "peer",
        "peer_user",
        "received_bytes",
        "sent_bytes",
    )

    def __init__(self, admission: Admission[Connection]) -> None:
        self._admission = admission
        self._batch = admission.batch
        self._session: Session | None = None
        self._out: list[bytes] = []
        self._blocked = False
        self._delivery_paused = False
        self._closing = False
        self._ended = False
        self._reason = ""
        self._descriptor = -1
        """File descriptor for direct writes; -1 with TLS, which does not allow them."""
        self._can_quick_ack = False
        self._quick_ack_socket: socket.socket | None = None
        self._output_timer: asyncio.TimerHandle | None = None
        self.held_bytes = 0
        """Bytes of input that the session has not processed yet, as reported to InputBudget."""
        self._input_at = 0
        """Steady ms of the last progress: the beginning of the unfinished frame, enough
        more of it (`InputBudget.progress_bytes`), or the time since which reading is possible."""
        self._was_incomplete = False
        """A frame had been received in part after the last read that left input."""
        self._progress_from = 0
        """Value of `received_bytes` at the last progress of the unfinished frame."""
        self._login_used = 0
        """Ms of the deadline for the login that had been used at the time `_login_at`."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.number = next(_numbers)
        """Number of the connection, unique within the process."""
        self.peer_user = ""

    # --- from the event loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("sslcontext") is None
        if not plain:
            # Send what the handshake has left in the buffer (session tickets): it would count as
            # unsent output until the first read.
            self._transport.writelines(())
        # The event loop reports when its buffer becomes non-empty and when it is empty again. (A
        # high mark of 0 would pause TLS connections forever: their buffer always reaches it.)
        self._transport.set_write_buffer_limits(high=1, low=0)
        raw = transport.get_extra_info("socket")
        address = transport.get_extra_info("peername")
        self.peer = name_of(address)
        self._batch.begin()
        self.active_at = self._batch.broker.clock.steady
        """Steady ms of the last bytes in either direction."""
        self._login_at = self.active_at
        """Steady ms of the last login check."""
        self.connected_at = self._batch.broker.clock.wall
        """Time of the connect, wall clock, ms."""
        # A client that has reset the connection already has no address: its input must not count as
        # that of a Unix socket.
        has_gone = not address and raw is not None and raw.family != socket.AF_UNIX
        descriptor = -1 if raw is None else raw.fileno()
        if has_gone or not self._admission.admit(self, descriptor):
            self._ended = True
            self._transport.abort()
            return
        if plain and raw is not None:
            self._descriptor = descriptor
            self._can_quick_ack = raw.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK")
        if transport.get_extra_info("peercert"):
            self.peer_user = self._certified_user()
            if not self.peer_user:
                # without a user name the client would be treated as anonymous
                reason = f"no {self._admission.options.client_user} in its certificate"
                log.info("connection rejected", peer=self.peer, reason=reason)
                self.abort("its certificate names no user")
                return
        self._open_session()

    def _certified_user(self) -> str:
        """Return the user that the client's certificate names, or ""."""
        # Only where there is TLS: the library that reads certificates is slow to load.
        from sluicemq.security.certificates import peer_user

        certificate = self._transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return peer_user(certificate, self._admission.options.client_user)

    def _open_session(self) -> None:
        try:
            refused = self in self._admission.refusals
            self._session = self._admission.session_factory(self, refused)
        except TooManyConnections as error:
            log.info("connection rejected", peer=self.peer, reason=str(error))
            self.abort(str(error))
            return
        except Exception as error:
            self.fault(error)
            return
        if self._session.login is not Login.DONE:
            self._admission.logging_in.add(self)
        log.debug(
            "connected",
            peer=self.peer,
            listener=str(self._admission.url),
            **({"certified": self.peer_user} if self.peer_user else {}),
        )

    def data_received(self, data: bytes) -> None:
        session = self._session
        if self._closing or session is None:
            return
        batch = self._batch
        batch.begin()
        self.active_at = batch.broker.clock.steady
        self.received_bytes += len(data)
        try:
            session.receive(data)
            session = self._session  # it may have been replaced, or be closed
            if session is not None and (session.buffered or self.held_bytes):
                is_complete = session.buffered < self.held_bytes + len(data)
                progress = self.received_bytes - self._progress_from
                if (
                    not self.held_bytes
                    or not self._was_incomplete
                    # a skipped frame is not held, and counts as 1 in addition to messages that wait
                    or (is_complete and session.buffered not in (1, self.held_bytes))
                    or progress >= self._admission.budget.progress_bytes
                ):
                    self._input_at = self.active_at
                    self._progress_from = self.received_bytes
                self._was_incomplete = session.incomplete
                self._report_input()
        except Exception as error:
            self.fault(error)

    def eof_received(self) -> bool:
        if self._ended or self._closing:
            return False
        self.call(self._end_input)
        return self._descriptor >= 0

    def _end_input(self) -> None:
        if self._session is not None:
            self._session.end_of_input()
            if self._descriptor < 0:
                # TLS has no half-close: the output must be sent now. (For a slow peer this is too
                # late, and the session requeues its messages.)
                try:
                    self._batch.broker.flush()
                except Exception as error:
                    self._batch.fail(error)
                else:
                    self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._quick_ack_socket is not None:
            self._quick_ack_socket.detach()
            self._quick_ack_socket = None
        self._batch.begin()
        self._release()
        # A flush may be scheduled, and another connection may use the descriptor by then.
        self._ended = True
        self._admission.remove(self)
        if self._output_timer is not None:
            self._output_timer.cancel()
        reason = self._reason or (str(exc) if exc else "")
        log.debug("disconnected", peer=self.peer, reason=reason)

    def pause_writing(self) -> None:
        self._blocked = True
        self._start_output_timer()

    def resume_writing(self) -> None:
        self._blocked = False
        if self._output_timer is not None:
            self._output_timer.cancel()
            self._output_timer = None
        self._batch.schedule_write(self)

    # --- for the session ---------------------------------------------------------------------

    def write(self, chunks: Iterable[bytes]) -> None:
        output = self._out
        if not output or self._blocked:  # the backlog of a slow peer is measured per iteration
            self._batch.schedule_write(self)
        output.extend(chunks)

    def close(self, reason: str = "") -> None:
        if not self._closing:
            self._closing = True
            self._reason = reason
            self._batch.schedule_write(self)
            if self._session is not None:
                self._session.discard_input()
            self._admission.budget.release(self)
            if reason:
                log.info("closing", peer=self.peer, reason=reason)

    def quick_ack(self) -> None:
        if self._can_quick_ack and not self._ended:
            if self._quick_ack_socket is None:
                # The event loop's socket wrapper creates a socket object per call: keep one. It
                # shares the descriptor, and is detached in connection_lost.
                self._quick_ack_socket = socket.socket(fileno=self._descriptor)
            # repeated on each call: the kernel returns to delayed acknowledgements by itself
            self._quick_ack_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def pause_reading(self) -> None:
        if not self._ended:
            if self not in self._admission.budget.suspended:
                self._transport.pause_reading()
            self._admission.reading_paused.add(self)
            if self.held_bytes:
                self._admission.budget.balance()

    def resume_reading(self) -> None:
        self._admission.reading_paused.discard(self)
        if self.held_bytes:
            self._input_at = self._batch.broker.clock.steady
            self._report_input()
        if not self._ended and self not in self._admission.budget.suspended:
            self._transport.resume_reading()

    def resume_if_peer_closed(self) -> None:
        """Resume reading of a paused connection if the peer has closed its side.

        A connection that does not read does not notice the EOF, and the session might wait forever.
        The remaining input is bounded by the kernel's receive buffer. (An EOF after more input
        than this buffer holds is not detected.)
        """
        raw = self._transport.get_extra_info("socket")
        if raw is None:
            return  # lost: with TLS, `connection_lost` is called in the next iteration
        poll = select.poll()
        poll.register(raw, select.POLLRDHUP)
        if poll.poll(0):
            self.resume_reading()

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._batch.loop.call_later(delay, self.call, callback)

    def claim_user(self, user: str) -> None:
        self._admission.claim_user(self, user)

    def replace_session(self, session: Session) -> None:
        self._session = session

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._batch.begin()
        try:
            callback(*arguments)
        except Exception as error:
            self.fault(error)

    # --- input limits ------------------------------------------------------------------------

    @property
    def awaits_no_input(self) -> bool:
        session = self._session
        return (
            self._closing
            or session is None
            or self in self._admission.reading_paused
            # complete requests do not wait for input
            or not session.incomplete
        )

    @property
    def is_suspended(self) -> bool:
        return self in self._admission.budget.suspended

    def set_suspended(self, suspended: bool) -> None:
        if self._ended or self in self._admission.reading_paused:
            return
        if suspended:
            self._transport.pause_reading()
        else:
            self._input_at = self._batch.broker.clock.steady
            self._transport.resume_reading()

    def review_input(self, now: int, exhausted_since: int) -> None:
        self._report_input()
        budget = self._admission.budget
        if not self.held_bytes or self in budget.suspended or self.awaits_no_input:
            return
        timeout = self._admission.options.frame_timeout
        if timeout and now - self._input_at > timeout * 1000:
            self.end("frame-timeout", f"an unfinished frame without progress for {timeout:g} s")
            return
        timeout = budget.stall_timeout
        if exhausted_since >= 0 and now - max(self._input_at, exhausted_since) > timeout * 1000:
            self.end(
                "input-stalled",
                f"{self.held_bytes} bytes of unfinished input, and neither its end nor "
                f"{budget.progress_bytes} bytes more within {timeout:g} s, while memory for input "
                "was exhausted",
            )

    def review_login(self, now: int) -> bool:
        """Enforce the deadline of the login; return True if no further check is needed.

        `now` is steady ms. Only time in state `Login.DUE` counts.
        """
        session = self._session
        if session is None or self._closing:
            return True
        elapsed, self._login_at = now - self._login_at, now
        login = session.login
        if login is Login.DUE:
            self._login_used += elapsed
            timeout = self._admission.options.login_timeout
            if timeout and self._login_used > timeout * 1000:
                self.end("login-timeout", f"no login within {timeout:g} s")
                return True
        return login is Login.DONE

    def _report_input(self) -> None:
        """Report the unprocessed input to the budget; end the connection above a limit."""
        session = self._session
        if self._closing or session is None:
            return  # the budget is already released
        buffered = session.buffered
        before = self.held_bytes
        if buffered == before:
            return
        budget = self._admission.budget
        if not budget.report(self, buffered):
            self.end(
                "input-limit",
                f"unfinished input of all connections exceeds {budget.ceiling} bytes; "
                "try again later",
            )
        elif buffered > before:
            limit = self._admission.options.max_login_bytes
            if buffered > limit and session.login is not Login.DONE:
                self.end(
                    "login-bytes", f"more than {limit} bytes of unfinished input before the login"
                )

    # --- sending -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the output, at the end of an iteration and when the write buffer is empty."""
        if self._ended:
            return
        if self._out and not self._blocked:
            self._send()
        if self._blocked or self._ended:
            self._check_watermark()
            return
        session = self._session
        if session is not None:
            try:
                self._delivery_paused = False
                session.flushed()
                if self.held_bytes:
                    self._report_input()
            except Exception as error:
                self.fault(error)
                return
        if self._closing and not self._out:
            self._finish()

    def _send(self) -> None:
        """Send all output. Sets `_blocked` if a part of it has to wait for the peer."""
        output = self._out
        data = output[0] if len(output) == 1 else b"".join(output)
        self._out = []
        self.active_at = self._batch.broker.clock.steady
        self.sent_bytes += len(data)
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

    def fault(self, error: Exception) -> None:
        """Abort this connection after an internal error; stop the broker on a JournalError."""
        if isinstance(error, JournalError):
            self._batch.fail(error)
            return
        log.error("internal error", peer=self.peer, exc_info=error)
        self.abort("internal error")

    def _check_watermark(self) -> None:
        """Pause delivery if the unsent output exceeds `output_high_watermark`."""
        if self._delivery_paused or self._ended or self._session is None:
            return
        unsent = self._transport.get_write_buffer_size() + sum(map(len, self._out))
        if unsent > self._admission.options.output_high_watermark:
            self._delivery_paused = True
            self._session.pause_delivery()

    def _start_output_timer(self) -> None:
        """Start `output_timeout`, in which the peer has to read some of the write buffer."""
        timeout = self._admission.options.output_timeout
        if timeout:
            unsent = self._transport.get_write_buffer_size()
            self._output_timer = self._batch.loop.call_later(
                timeout, self._check_output_progress, unsent
            )

    def _check_output_progress(self, unsent: int) -> None:
        """Abort the connection if `unsent` bytes are still in the write buffer."""
        self._output_timer = None
        if self._ended:
            return
        if self._transport.get_write_buffer_size() < unsent:
            self._start_output_timer()
        else:
            timeout = self._admission.options.output_timeout
            self._reason = f"took none of the bytes sent to it for {timeout:g} s"
            log.info("slow connection closed", peer=self.peer, reason=self._reason)
            self._admission.closed["output-timeout"] += 1
            self.abort("")

    # --- closing -----------------------------------------------------------------------------

    def _finish(self) -> None:
        """Send EOF after the last bytes, and close after LINGER_SECONDS."""
        self._release()
        self._ended = True
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # reset by the peer: the event loop has not read it yet
                self._transport.abort()
                return
            self._admission.reading_paused.discard(self)
            self._transport.resume_reading()
            self._batch.loop.call_later(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close without sending the queued bytes, so that the peer sees a reset (TCP only)."""
        if self._descriptor >= 0 and not self._ended:
            # without unread input the kernel would end the connection as after an orderly close
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._reason = self._reason or reason
        self._closing = True
        self._ended = True
        self._out.clear()
        self._transport.abort()
        self._release()

    def shutdown(self) -> None:
        """Shut the session down, because the broker stops."""
        if self._session is not None and not self._closing:
            self.call(partial(self._session.disconnect, "the broker stops", stopping=True))

    def end(self, code: str, reason: str) -> None:
        """Disconnect because of a limit or deadline, and count it as `code`."""
        self._admission.closed[code] += 1
        log.info("closing", peer=self.peer, reason=reason)
        self.disconnect(reason)

    def disconnect(self, reason: str) -> None:
        """Let the session send the reason and close, within a time limit."""
        if self._ended:
            return
        if self._session is not None and not self._closing:
            self.call(partial(self._session.disconnect, reason))
        self._batch.loop.call_later(DISCONNECT_SECONDS, self._abort_if_open, reason)

    def _abort_if_open(self, reason: str) -> None:
        if not self._ended:
            self.abort(reason)

    # --- info --------------------------------------------------------------------------------

    @property
    def listener_url(self) -> Url:
        """URL of the listener, with the port that the operating system chose for port 0."""
        return self._admission.url

    @property
    def state(self) -> str:
        """State of the connection.

        connecting, open, blocked (reading is paused), slow (delivery is paused until the peer has
        read its output), closing.
        """
        if self._closing or self._ended or self._session is None:
            return "closing"
        if self in self._admission.budget.suspended or self in self._admission.reading_paused:
            return "blocked"
        if self._delivery_paused:
            return "slow"
        return self._session.session_info().state

    def session_info(self) -> SessionInfo:
        """Return protocol, user, client id and state of the connection."""
        if self._session is None:
            return SessionInfo(self._admission.url.protocol, self.peer_user)
        return self._session.session_info()

    def consumers(self) -> Iterable[Consumer]:
        """Return the current consumers of the session."""
        return () if self._session is None else self._session.consumers()

    def _release(self) -> None:
        session, self._session = self._session, None
        self._admission.budget.release(self)
        if session is None:
            return
        session.discard_input()
        if not self._batch.is_halted:
            self.call(session.closed)
