"""HTTP/1.1 sessions: adapters between the broker's transport and the ASGI application.

uvicorn's protocol class parses HTTP/1.1 (with h11, which bounds heads) and runs the application;
sockets, TLS, idle times and the number of connections are the broker's own, as for every other
protocol. Its transport is a `protocols.transport.Transport`.

    transport ──receive──> Http11.data_received ──> application
         <──write──── UvicornTransport <───────── its response

Every CHECK_SECONDS the session checks for slow clients. It rejects a request whose head was
incomplete at the previous check and still is, and a request whose body arrived at less than
MIN_BODY_RATE bytes per second since the previous check while the application was reading it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final, cast

import h11
import msgspec
import structlog
from h11 import LocalProtocolError
from h11._receivebuffer import ReceiveBuffer
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from sluicemq.admin.app import Application
from sluicemq.admin.caller import Caller
from sluicemq.admin.errors import PROBLEM_TYPE, problem
from sluicemq.protocols.transport import Login, NoConsumers, SessionInfo, Timer, Transport
from sluicemq.security.access import Access

# --- Strict parsing -------------------------------------------------------------------------------
#
# Stricter parsing of HTTP/1.1 than h11's: ambiguous requests are rejected.
#
# If a proxy and the broker disagree on where a request ends, a client can make them disagree on the
# requests and their senders (request smuggling). h11 accepts some ambiguous input. Rejected here:
#
# - a line of the head or of the trailer that ends in LF without CR
# - a header line that continues the one before it (obs-fold)
# - Content-Length together with Transfer-Encoding, twice, or with a list
# - Transfer-Encoding in HTTP/1.0
# - a chunk size followed by anything but an extension without control characters
#
# h11 itself rejects transfer codings other than `chunked`, blanks before the colon of a header, and
# control characters in headers. See RFC 9112 sections 2.2, 5.2, 6.1, 6.3 and 7.1.

_CHUNK_LINE: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(;[\t\x20-\x7e\x80-\xff]*)?\r\n")


class StrictReceiveBuffer(ReceiveBuffer):
    """Receive buffer of a server's h11.Connection.

    Raises LocalProtocolError, which h11 turns into RemoteProtocolError.
    """

    def __init__(self) -> None:
        super().__init__()
        self._checked = 0
        """Bytes of the incomplete head up to the end of its last complete line."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a head or trailer without their ends, None while it is incomplete."""
        data = self._data
        while (end := data.find(b"\n", self._checked)) >= 0:
            if end == 0 or data[end - 1] != 0x0D:
                raise LocalProtocolError("a line does not end in CR LF")
            if end - 1 == self._checked:  # a blank line: the end of the head
                break
            if data[self._checked] in b" \t":
                raise LocalProtocolError("a header line is folded")
            self._checked = end + 1
        lines = super().maybe_extract_lines()
        if lines is not None:
            self._checked = 0
            _check_framing(lines)
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line with a chunk's size, None while it is incomplete."""
        line = super().maybe_extract_next_line()
        if line is not None and _CHUNK_LINE.fullmatch(line) is None:
            raise LocalProtocolError("a chunk's size is not a hexadecimal number")
        return line


def _check_framing(lines: list[bytearray]) -> None:
    """Reject a head that does not determine the end of its body."""
    headers = [line.partition(b":") for line in lines]
    lengths = [value for name, _, value in headers if name.lower() == b"content-length"]
    codings = [value for name, _, value in headers if name.lower() == b"transfer-encoding"]
    if not all(length.strip(b" \t").isdigit() for length in lengths):
        raise LocalProtocolError("the Content-Length is not a number")
    if len(lengths) + len(codings) > 1:
        raise LocalProtocolError("there is more than one Content-Length or Transfer-Encoding")
    if codings and not lines[0].endswith(b"HTTP/1.1"):
        raise LocalProtocolError("only HTTP/1.1 has Transfer-Encoding")


KEEP_ALIVE_SECONDS: Final = 75
"""Idle timeout of a connection after its first request."""
CHECK_SECONDS: Final = 30.0
"""Interval of the checks for slow clients. A request head may take once to twice this time."""
MIN_BODY_RATE: Final = 1024
"""Minimum rate of a request body, in bytes per second."""

log = structlog.get_logger("sluicemq.http")


class _Forward(logging.Handler):
    """Handler that forwards uvicorn's log records to the broker's log. Warnings, which report
    invalid requests, are logged at level debug."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record at level error or debug."""
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            log.error(record.getMessage().strip(), exc_info=error)
        else:
            log.debug(record.getMessage().strip())


class HttpService:
    """Configuration and state shared by all HTTP connections of a listener."""

    def __init__(self, application: Application, head: int) -> None:
        """Limit request heads to `head` bytes."""
        self.config = Config(
            application,
            http=Http11,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=head,
        )
        self.config.load()
        self.state = ServerState()
        logger = logging.getLogger("uvicorn.error")
        if not any(isinstance(handler, _Forward) for handler in logger.handlers):
            logger.addHandler(_Forward())
            logger.propagate = False


class UvicornTransport(asyncio.Transport):
    """Present a session's transport to uvicorn as an asyncio transport."""

    def __init__(self, transport: Transport, tls: bool) -> None:
        super().__init__({"sslcontext": tls})
        self._transport = transport
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue `data`; the transport sends it at the end of the event loop iteration."""
        if data and not self._closing:
            self._transport.write((bytes(data),))

    def close(self) -> None:
        """Close the connection once all queued bytes are sent."""
        if not self._closing:
            self._closing = True
            self._transport.close()

    def is_closing(self) -> bool:
        """Return whether `close` was called; later writes are dropped."""
        return self._closing

    def pause_reading(self) -> None:
        """Pause reading unless the connection is closing."""
        if not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading unless the connection is closing."""
        if not self._closing:
            self._transport.resume_reading()


class Http11(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with strict parsing (`strict_http`). Its own error responses
    are problem documents like those of the API."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to read requests from `transport`."""
        # h11 has no public option for stricter parsing
        self.conn._receive_buffer = StrictReceiveBuffer()
        super().connection_made(transport)

    def send_400_response(self, msg: str) -> None:
        """Reject a request that h11 cannot parse or whose head is too large."""
        limit = self.config.h11_max_incomplete_event_size
        self.refuse(
            400,
            "bad-request",
            f"this is not HTTP/1.1, or the head of the request has more than {limit} bytes",
        )

    def conclude(self) -> bool:
        """Close the connection after the response in progress. Return False if there is none."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        return True

    def refuse(self, status: int, code: str, message: str) -> None:
        """Send an error response unless a response has begun, and close the connection."""
        if self.cycle is not None:
            # the application may still be handling the request; its response is dropped
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(problem(status, code, message))
            headers = [
                ("Content-Type", PROBLEM_TYPE),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class HttpSession(NoConsumers):
    """Session of one HTTP connection; implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_body",
        "_caller",
        "_head",
        "_in_body",
        "_in_head",
        "_protocol",
        "_received",
        "_timer",
        "_transport",
        "_was_in_head",
    )

    def __init__(
        self, transport: Transport, http: HttpService, access: Access, *, host: str, tls: bool
    ) -> None:
        """Start reading requests from `transport`.

        `host` is the only host name, besides IP addresses and `localhost`, that a `Host` header may
        have while requests need no login; "" allows every name.
        """
        self._transport = transport
        self._caller = Caller(transport, access, host, tls)
        self._protocol = Http11(http.config, http.state, {"caller": self._caller})
        self._protocol.connection_made(UvicornTransport(transport, tls))
        self._in_head = True
        """True while a request head is incomplete, and before the first request."""
        self._was_in_head = False
        """True if the same head was already incomplete at the previous check."""
        self._in_body = False
        """True if the application was reading a body at the previous check."""
        self._received = 0
        """Bytes received since the previous check."""
        self._head = 0
        """Size in bytes of the incomplete head that h11 buffers."""
        self._body = 0
        """Bytes received of the body of the current request."""
        self._timer: Timer = transport.call_later(CHECK_SECONDS, self._check_progress)

    def receive(self, data: bytes) -> None:
        """Parse received bytes."""
        self._received += len(data)
        protocol, connection = self._protocol, self._protocol.conn
        previous_cycle, in_body = protocol.cycle, connection.their_state is h11.SEND_BODY
        protocol.data_received(data)
        if in_body:
            self._body += len(data)
        elif protocol.cycle is not previous_cycle:
            self._body += len(protocol.cycle.body)
        self._reset_body_count()
        self._head = len(connection.trailing_data[0])
        self._in_head = connection.their_state is h11.IDLE and self._head > 0
        self._was_in_head = self._was_in_head and self._in_head

    def _reset_body_count(self) -> None:
        """Reset the body's byte count once its request has a complete response."""
        cycle = cast(RequestResponseCycle | None, self._protocol.cycle)
        if self._body and (cycle is None or cycle.response_complete):
            self._body = 0

    @property
    def buffered(self) -> int:
        """Bytes of unfinished input. A body counts until the response to its request is
        complete."""
        return self._head + self._body

    @property
    def incomplete(self) -> bool:
        """True while a request head or body is incomplete."""
        return self._in_head or self._protocol.conn.their_state is h11.SEND_BODY

    @property
    def login(self) -> Login:
        """Login state. Each request carries its own credentials, so the login is done once the
        first head is complete."""
        begun = cast(RequestResponseCycle | None, self._protocol.cycle) is not None
        return Login.DONE if begun else Login.NONE

    def discard_input(self) -> None:
        """Stop counting buffered input. The application frees the body bytes it has read."""
        self._head = self._body = 0

    def end_of_input(self) -> None:
        """Finish the response in progress, unless its login is still being verified, and close."""
        self._caller.access.cancel_login()
        if not self._protocol.conclude():
            self._transport.close()

    def flushed(self) -> None:
        """Resume writing of responses, and update the body's byte count: the response may be
        complete."""
        self._protocol.resume_writing()
        self._reset_body_count()

    def pause_delivery(self) -> None:
        """Pause writing of responses."""
        self._protocol.pause_writing()

    def closed(self) -> None:
        """Release the session's resources after the connection has closed."""
        self._timer.cancel()
        self._caller.is_closed = True
        self._cancel_pending()
        self._protocol.connection_lost(None)

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Finish the response in progress and close, with an administrator's `reason` for the
        log."""
        self._cancel_pending()
        if stopping:
            self._protocol.shutdown()
        elif not self._protocol.conclude():
            self._transport.close(reason)

    def _cancel_pending(self) -> None:
        """End long-running responses and cancel a login that is being verified."""
        self._caller.closing.set()
        self._caller.access.cancel_login()

    def session_info(self) -> SessionInfo:
        """Return protocol and user of the connection."""
        return SessionInfo("http", self._caller.user)

    def _check_progress(self) -> None:
        """Reject the current request if its head or body arrives too slowly."""
        protocol = self._protocol
        received, self._received = self._received, 0
        state = protocol.conn.their_state
        is_read = not (protocol.flow.read_paused or self._transport.is_suspended)
        in_body = state is h11.SEND_BODY and is_read
        if in_body and self._in_body and received < CHECK_SECONDS * MIN_BODY_RATE:
            protocol.refuse(
                408, "request-timeout", f"a body comes at {MIN_BODY_RATE} bytes in a second or more"
            )
            return
        self._in_body = in_body
        if self._was_in_head and is_read:
            message = f"the head of a request has not come within {CHECK_SECONDS:g} s"
            protocol.refuse(408, "request-timeout", message)
            return
        self._was_in_head = self._in_head and is_read
        self._timer = self._transport.call_later(CHECK_SECONDS, self._check_progress)
